// A backend that is given all records as rows that don't change, so that it reads its own copies of
// them.
#pragma once

#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/decide/backend.h"

namespace sis {

// The arrays of a stretch's records side by side, as a page has them, under one name.
class FixedBehavior {
 public:
  explicit FixedBehavior(const BehaviorView& behavior) {
    const auto bytes_of = [](auto array) { return std::as_bytes(array); };
    const std::span<const std::byte> parts[] = {
        bytes_of(behavior.log_probs), bytes_of(behavior.grouped_log_probs.rows),
        bytes_of(behavior.sampled_log_probs), behavior.sampled_ranks.memory()};
    size_t offsets[5] = {0};
    for (int i = 0; i < 4; ++i) offsets[i + 1] = offsets[i] + (parts[i].size() + 31) / 32 * 32;
    memory_.resize(offsets[4]);
    for (int i = 0; i < 4; ++i) {
      if (!parts[i].empty()) {
        std::memcpy(memory_.data() + offsets[i], parts[i].data(), parts[i].size());
      }
    }
    const auto at = [&]<typename T>(int i, std::span<const T> array) {
      return std::span(reinterpret_cast<const T*>(memory_.data() + offsets[i]), array.size());
    };
    view_ = {.log_probs = at(0, behavior.log_probs),
             .sampled_log_probs = at(2, behavior.sampled_log_probs),
             .sampled_ranks = RanksAt(memory_.data() + offsets[3], behavior.sampled_ranks),
             .grouped_log_probs = behavior.grouped_log_probs,
             .ragged_log_probs = behavior.ragged_log_probs,
             .fixed_rows = {memory_, &tag_}};
    view_.grouped_log_probs.rows = at(1, behavior.grouped_log_probs.rows);
    tag_.Renew();
  }

  const BehaviorView& view() const { return view_; }

 private:
  static RankSpan RanksAt(const std::byte* memory, const RankSpan& ranks) {
    return ranks.bytes() != nullptr
               ? RankSpan(reinterpret_cast<const uint8_t*>(memory), ranks.size())
               : RankSpan(reinterpret_cast<const uint16_t*>(memory), ranks.size());
  }

  std::vector<std::byte> memory_;
  RowsTag tag_;
  BehaviorView view_;
};

// Evaluates each call twice, the second time with copies that may be resident by then, and expects
// the same bytes.
class WithFixedRows final : public Backend {
 public:
  WithFixedRows(const Backend& backend, const std::string& suffix)
      : backend_(backend), name_(std::string(backend.name()) + suffix) {}

  std::string_view name() const override { return name_; }
  ResidentRowsStats resident_rows() const override { return backend_.resident_rows(); }

  void Evaluate(const EvaluateParameters& parameters,
                std::span<const Stretch> stretches) const override {
    std::deque<FixedBehavior> records;
    std::deque<Output> first_outputs;
    std::vector<Stretch> fixed(stretches.begin(), stretches.end());
    for (Stretch& stretch : fixed) {
      stretch.behavior = records.emplace_back(stretch.behavior).view();
    }
    std::vector<Stretch> first(fixed);
    for (Stretch& stretch : first) first_outputs.emplace_back(stretch);
    backend_.Evaluate(parameters, first);
    backend_.Evaluate(parameters, fixed);
    for (size_t i = 0; i < stretches.size(); ++i) first_outputs[i].ExpectSame(stretches[i].output);
  }

 private:
  // Where the results of the first time go.
  struct Output {
    explicit Output(Stretch& stretch)
        : decisions(stretch.output.decisions.size()),
          acceptance_probabilities(stretch.output.acceptance_probabilities.size()),
          log_modified_ratios(stretch.output.log_modified_ratios.size()),
          modified_ratios(stretch.output.modified_ratios.size()),
          log_ratios(stretch.output.log_ratios.size()),
          log_envelopes(stretch.output.log_envelopes.size()),
          covered_masses(stretch.output.covered_masses.size()),
          prefix_sums(stretch.prefix_sums.size()) {
      stretch.output = {decisions,           acceptance_probabilities,
                        log_modified_ratios, modified_ratios,
                        log_ratios,          log_envelopes,
                        covered_masses};
      stretch.sums = &sums;
      stretch.prefix_sums = prefix_sums;
    }
    void ExpectSame(const OutputView& second) const {
      if (sums.invalid > 0) return;  // then the other results mean nothing
      const auto same = [](const auto& a, auto b) {
        return a.size() == b.size() &&
               (a.empty() || std::memcmp(a.data(), b.data(), b.size_bytes()) == 0);
      };
      EXPECT_TRUE(
          same(decisions, second.decisions) &&
          same(acceptance_probabilities, second.acceptance_probabilities) &&
          same(log_modified_ratios, second.log_modified_ratios) &&
          same(modified_ratios, second.modified_ratios) && same(log_ratios, second.log_ratios) &&
          same(log_envelopes, second.log_envelopes) && same(covered_masses, second.covered_masses))
          << "the second time differs";
    }

    std::vector<Decision> decisions;
    std::vector<float> acceptance_probabilities;
    std::vector<float> log_modified_ratios;
    std::vector<float> modified_ratios;
    std::vector<float> log_ratios;
    std::vector<float> log_envelopes;
    std::vector<float> covered_masses;
    std::vector<PrefixSums> prefix_sums;
    Sums sums;
  };

  const Backend& backend_;
  const std::string name_;
};

}  // namespace sis
