#include "tests/conformance/positions.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string_view>
#include <utility>

#include "kernels/block/pack.h"
#include "kernels/block/read.h"

namespace sis {
namespace {

template <typename T>
std::span<const T> Rows(const std::vector<T>& values, size_t first, size_t count, size_t width) {
  if (values.empty()) return {};
  return std::span(values).subspan(first * width, count * width);
}

// `values` behind `offset` others, in memory that ends with them.
std::vector<float> Behind(size_t offset, const std::vector<float>& values) {
  if (values.empty()) return {};
  std::vector<float> behind(offset + values.size());
  std::ranges::copy(values, behind.begin() + static_cast<ptrdiff_t>(offset));
  return behind;
}

template <typename T>
T ValueOf(absl::StatusOr<T> value) {
  if (!value.ok()) {
    std::cerr << value.status() << std::endl;
    std::abort();
  }
  return *std::move(value);
}

}  // namespace

RecordView Positions::records() const {
  return {sampled_ids, behavior_sampled_log_probs, ids, behavior_log_probs};
}

OutputView Results::Output(size_t first, size_t count) {
  const auto rows = [&](auto& values) { return std::span(values).subspan(first, count); };
  return {rows(decisions),           rows(acceptance_probabilities),
          rows(log_modified_ratios), rows(modified_ratios),
          rows(log_ratios),          rows(log_envelopes),
          rows(covered_masses)};
}

BlockView OpenWithSlack(std::vector<std::byte>& block) {
  const size_t bytes = block.size();
  block.resize(bytes + kBlockSlack);
  return ValueOf(OpenBlock(std::span(block).first(bytes), true));
}

Packed::Packed(const Positions& positions, uint32_t first_position, Packing packing, size_t offset)
    : offset_(offset), first_position_(first_position) {
  const size_t slots = positions.slots, n = positions.size();
  // Each slot takes up to seven bytes.
  block_positions_ = std::min<size_t>(kMaxBlockPositions, kMaxBlockBytes / (7 * slots + 32));
  slots_before_.push_back(0);
  std::vector<float> current;
  for (size_t first = 0; first < n; first += block_positions_) {
    const size_t count = std::min(block_positions_, n - first);
    const std::vector<std::byte> block =
        ValueOf(PackBlock({Rows(positions.sampled_ids, first, count, 1),
                           Rows(positions.behavior_sampled_log_probs, first, count, 1),
                           Rows(positions.ids, first, count, slots),
                           Rows(positions.behavior_log_probs, first, count, slots)},
                          {.encoding = packing.encoding,
                           .slots = positions.slots,
                           .vocabulary_size = kVocabularySize,
                           .first_position = first_position + static_cast<uint32_t>(first),
                           .mass = packing.mass}));
    std::vector<std::byte>& bytes =
        bytes_.emplace_back(offset * sizeof(float) + block.size() + kBlockSlack);
    const auto place = std::span(bytes).subspan(offset * sizeof(float), block.size());
    std::ranges::copy(block, place.begin());
    const BlockView& view = blocks_.emplace_back(ValueOf(OpenBlock(place, true)));
    std::vector<float> log_probs(count * slots);
    ReadBlockLogProbRows(view, slots, log_probs);
    for (size_t i = 0; i < count; ++i) {
      const auto append = [&](std::span<const float> row, std::vector<float>& to) {
        if (!row.empty()) to.insert(to.end(), row.begin(), row.begin() + view.counts[i]);
      };
      append(Rows(log_probs, i, 1, slots), log_probs_);
      append(Rows(positions.current_log_probs, first + i, 1, slots), current);
      slots_before_.push_back(log_probs_.size());
    }
  }
  current_sampled_ = Behind(offset, positions.current_sampled_log_probs);
  current_log_probs_ = Behind(offset, current);
  log_envelopes_ = Behind(offset, positions.log_envelopes);
  covered_masses_ = Behind(offset, positions.covered_masses);
}

std::span<const float> Packed::LogProbs(size_t first, size_t count) const {
  return Rows(log_probs_, slots_before_[first], slots_before_[first + count] - slots_before_[first],
              1);
}

CurrentView Packed::Current(size_t first, size_t count) const {
  const size_t slots = slots_before_[first + count] - slots_before_[first];
  return {Rows(current_sampled_, offset_ + first, count, 1),
          Rows(current_log_probs_, offset_ + slots_before_[first], slots, 1),
          Rows(log_envelopes_, offset_ + first, count, 1),
          Rows(covered_masses_, offset_ + first, count, 1)};
}

BackendRange Packed::RangeOf(size_t first, size_t count, uint64_t sequence_key, Results& results,
                             size_t row) const {
  return {.sequence_key = sequence_key,
          .first_position = first_position_ + static_cast<uint32_t>(first),
          .behavior = BlockRange(blocks_[first / block_positions_],
                                 static_cast<uint32_t>(first % block_positions_),
                                 static_cast<uint32_t>(count)),
          .current = Current(first, count),
          .output = results.Output(row, count),
          .sums = &results.sums,
          .prefix_sums = results.prefix_sums};
}

Results Evaluate(const Backend& backend, const EvaluateParameters& parameters,
                 uint64_t sequence_key, const Packed& packed, size_t first, size_t count) {
  count = std::min(count, packed.size() - first);
  Results results(count, parameters.prefix_curve.size());
  std::vector<BackendRange> ranges;
  for (size_t row = 0; row < count; row += ranges.back().behavior.size()) {
    const size_t length = std::min(count - row, packed.LeftOfBlock(first + row));
    ranges.push_back(packed.RangeOf(first + row, length, sequence_key, results, row));
  }
  backend.Evaluate(parameters, ranges);
  return results;
}

Results Evaluate(const Backend& backend, const EvaluateParameters& parameters,
                 uint64_t sequence_key, uint32_t first_position, const Positions& positions,
                 Packing packing) {
  return Evaluate(backend, parameters, sequence_key, Packed(positions, first_position, packing));
}

testing::AssertionResult SameBytes(const OutputView& left, const OutputView& right) {
  const auto compare = [](std::string_view name, auto a, auto b) {
    if (a.empty() || b.empty()) return testing::AssertionSuccess();
    const bool same = a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
    return (same ? testing::AssertionSuccess() : testing::AssertionFailure()) << name << " differ";
  };
  testing::AssertionResult result = compare("decisions", left.decisions, right.decisions);
  constexpr std::pair<const char*, std::span<float> OutputView::*> kFloats[] = {
      {"acceptance probabilities", &OutputView::acceptance_probabilities},
      {"log modified ratios", &OutputView::log_modified_ratios},
      {"modified ratios", &OutputView::modified_ratios},
      {"log ratios", &OutputView::log_ratios},
      {"log-envelopes", &OutputView::log_envelopes},
      {"covered masses", &OutputView::covered_masses}};
  for (const auto& [name, floats] : kFloats) {
    if (result) result = compare(name, left.*floats, right.*floats);
  }
  return result;
}

testing::AssertionResult SameBytes(Results left, Results right) {
  if (!(left.sums == right.sums)) return testing::AssertionFailure() << "sums differ";
  if (left.prefix_sums != right.prefix_sums) {
    return testing::AssertionFailure() << "prefix curves differ";
  }
  if (left.decisions.size() != right.decisions.size()) {
    return testing::AssertionFailure() << "numbers of positions differ";
  }
  return SameBytes(left.Output(0, left.decisions.size()), right.Output(0, right.decisions.size()));
}

}  // namespace sis
