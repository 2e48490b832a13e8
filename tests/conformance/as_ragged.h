// A backend that is given all records without their unused slots, as pages of sets of differing
// length hold them, and current values in the same way or in rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/decide/backend.h"
#include "kernels/records/ragged_log_probs.h"

namespace sis {

// The records of a stretch, in float32. Positions before it share its first group, and have slots.
class RaggedBehavior {
 public:
  RaggedBehavior(const BehaviorView& behavior, size_t slots, uint32_t first_position)
      : view_{.log_probs = {},
              .sampled_log_probs = behavior.sampled_log_probs,
              .sampled_ranks = behavior.sampled_ranks} {
    const size_t first_lane = first_position % kGroupPositions;
    const size_t lanes = first_lane + behavior.sampled_log_probs.size();
    const LogProbReader reader(behavior.log_probs, behavior.grouped_log_probs, slots);
    counts_.resize(GroupCount(lanes) * kGroupPositions);
    for (size_t lane = 0; lane < lanes; ++lane) {
      uint16_t& count = counts_[lane];
      if (lane < first_lane) count = static_cast<uint16_t>(lane % (slots + 1));
      while (lane >= first_lane && count < slots &&
             reader.At(lane - first_lane, count) != kMinusInfinity) {
        ++count;
      }
    }
    for (size_t group = 0; group < GroupCount(lanes); ++group) {
      begins_.push_back(static_cast<uint32_t>(codes_.size()));
      for (size_t rank = 0; rank < slots; ++rank) {
        for (size_t i = 0; i < kGroupPositions; ++i) {
          const size_t lane = group * kGroupPositions + i;
          if (counts_[lane] <= rank) continue;
          codes_.push_back(lane < first_lane ? -0.5f : reader.At(lane - first_lane, rank));
        }
      }
    }
    begins_.push_back(static_cast<uint32_t>(codes_.size()));
    view_.ragged_log_probs = {.counts = counts_,
                              .begins = begins_,
                              .multipliers = {},
                              .codes = std::as_bytes(std::span(codes_)),
                              .encoding = LogProbEncoding::kFloat32,
                              .first_lane = static_cast<uint8_t>(first_lane)};
  }
  RaggedBehavior(const RaggedBehavior&) = delete;
  RaggedBehavior& operator=(const RaggedBehavior&) = delete;

  const BehaviorView& view() const { return view_; }

 private:
  std::vector<uint16_t> counts_;
  std::vector<uint32_t> begins_;
  std::vector<float> codes_;
  BehaviorView view_;
};

// Current log-probs without those of slots that the ragged records have not.
class RaggedValues {
 public:
  RaggedValues(const CurrentView& rows, const RaggedLogProbs& records, size_t slots) : view_(rows) {
    for (size_t i = 0; i < rows.sampled_log_probs.size(); ++i) {
      const size_t count = records.counts[records.first_lane + i];
      counts_.push_back(static_cast<uint16_t>(count));
      const auto row = rows.log_probs.subspan(i * slots, count);
      log_probs_.insert(log_probs_.end(), row.begin(), row.end());
    }
    view_.counts = counts_;
    view_.log_probs = log_probs_;
  }
  RaggedValues(const RaggedValues&) = delete;
  RaggedValues& operator=(const RaggedValues&) = delete;

  const CurrentView& view() const { return view_; }

 private:
  std::vector<uint16_t> counts_;
  std::vector<float> log_probs_;
  CurrentView view_;
};

// What is given without unused slots.
enum class Ragged { kRecords, kRecordsAndValues };

class AsRagged final : public Backend {
 public:
  AsRagged(const Backend& backend, Ragged ragged)
      : backend_(backend),
        ragged_(ragged),
        name_(std::string(backend.name()) +
              (ragged == Ragged::kRecords ? "_ragged" : "_ragged_values")) {}

  std::string_view name() const override { return name_; }

  void Evaluate(const EvaluateParameters& parameters,
                std::span<const Stretch> stretches) const override {
    const auto slots = static_cast<size_t>(parameters.slots);
    std::deque<RaggedBehavior> records;
    std::deque<RaggedValues> values;
    std::vector<Stretch> ragged(stretches.begin(), stretches.end());
    for (Stretch& stretch : ragged) {
      const BehaviorView& behavior = stretch.behavior;
      if (!behavior.log_probs.empty() || !behavior.grouped_log_probs.empty()) {
        stretch.behavior = records.emplace_back(behavior, slots, stretch.first_position).view();
      }
      const RaggedLogProbs& log_probs = stretch.behavior.ragged_log_probs;
      if (ragged_ == Ragged::kRecords || log_probs.empty() || stretch.current.reduced()) continue;
      stretch.current = values.emplace_back(stretch.current, log_probs, slots).view();
    }
    backend_.Evaluate(parameters, ragged);
  }

 private:
  const Backend& backend_;
  const Ragged ragged_;
  const std::string name_;
};

}  // namespace sis
