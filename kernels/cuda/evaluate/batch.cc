#include "kernels/cuda/evaluate/batch.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <numeric>
#include <optional>

#include "kernels/records/packed_values.h"

namespace sis::cuda {
namespace {

// A sector of device memory; no less than any element's alignment.
constexpr size_t kAlignment = 32;

constexpr size_t Aligned(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

template <typename T>
std::span<T> Part(std::span<T> array, size_t first, size_t count) {
  return array.empty() ? array : array.subspan(first, count);
}

template <typename T>
bool IsPartOf(std::span<const std::byte> bytes, std::span<const T> array) {
  const std::span<const std::byte> part = std::as_bytes(array);
  const std::less_equal<> before;
  return part.empty() || (before(bytes.data(), part.data()) &&
                          before(part.data() + part.size(), bytes.data() + bytes.size()));
}

// The rows that copies may be made of; none if what is to be read is elsewhere.
FixedRows FixedRowsOf(const BehaviorView& behavior) {
  const std::span<const std::byte> bytes = behavior.fixed_rows.bytes;
  const bool inside = IsPartOf(bytes, behavior.log_probs) &&
                      IsPartOf(bytes, behavior.grouped_log_probs.rows) &&
                      IsPartOf(bytes, behavior.sampled_log_probs) &&
                      IsPartOf(bytes, behavior.sampled_ranks.memory());
  return inside ? behavior.fixed_rows : FixedRows();
}

// Writes the values at used slots of `rows` [n, K], position by position. The first position is in
// lane `first_lane`; for lanes around the n positions it leaves room.
void WriteUsedSlots(std::span<const float> rows, size_t slots, std::span<const uint16_t> counts,
                    size_t first_lane, float* to) {
  const float* row = rows.data();
  const size_t end = first_lane + rows.size() / slots;
  for (size_t lane = 0; lane < counts.size(); ++lane) {
    const size_t count = counts[lane];
    if (lane >= first_lane && lane < end) {
      // Mostly so few that a call of memcpy takes longer.
      for (size_t slot = 0; slot < count; ++slot) to[slot] = row[slot];
      row += slots;
    }
    to += count;
  }
}

}  // namespace

void Batch::Reset(const EvaluateParameters& parameters) {
  parameters_ = parameters;
  stretches_.clear();
  tiles_.clear();
  sums_.clear();
  copies_in_.clear();
  ragged_copies_in_.clear();
  copies_out_.clear();
  rows_.Abandon();
  upload_bytes_ = 0;
  input_end_ = 0;
  output_end_ = 0;
}

size_t Batch::stretches_offset() const { return input_end_; }
size_t Batch::tiles_offset() const {
  return stretches_offset() + Aligned(stretches_.size() * sizeof(StagedStretch));
}
size_t Batch::input_bytes() const { return tiles_offset() + tiles_.size() * sizeof(StagedTile); }
size_t Batch::uploads_offset() const { return Aligned(input_bytes()); }
size_t Batch::sums_offset() const { return output_end_; }
size_t Batch::output_bytes() const { return output_end_ + sums_.size() * sizeof(Sums); }

template <typename T>
uint64_t Batch::StageInput(std::span<const T> array) {
  if (array.empty()) return kAbsent;
  const uint64_t offset = input_end_;
  copies_in_.push_back({std::as_bytes(array), offset});
  input_end_ += Aligned(array.size_bytes());
  return offset;
}

template <typename T>
uint64_t Batch::StageOutput(std::span<T> array) {
  if (array.empty()) return kAbsent;
  const uint64_t offset = output_end_;
  copies_out_.push_back({std::as_writable_bytes(array), offset});
  output_end_ += Aligned(array.size_bytes());
  return offset;
}

template <class Place>
StagedRows Batch::PlaceBehavior(const BehaviorView& behavior, size_t first, size_t count,
                                const Place& place) {
  const size_t slots = parameters_.slots;
  const GroupedLogProbs& grouped = behavior.grouped_log_probs;
  if (grouped.empty()) {
    return {place(behavior.log_probs.subspan(first * slots, count * slots)),
            RowLayout::kTokenMajor};
  }
  const size_t group_bytes = GroupBytes(grouped.encoding, slots);
  const size_t group = (grouped.first_lane + first) / kGroupPositions;
  const size_t lane = (grouped.first_lane + first) % kGroupPositions;
  return {place(grouped.rows.subspan(group * group_bytes, GroupCount(lane + count) * group_bytes)),
          RowLayout::kGrouped, grouped.encoding, static_cast<uint8_t>(lane)};
}

void Batch::StageRagged(const RaggedLogProbs& log_probs, const CurrentView& current, size_t first,
                        size_t count, StagedStretch& staged) {
  const size_t group = (log_probs.first_lane + first) / kGroupPositions;
  const size_t lane = (log_probs.first_lane + first) % kGroupPositions;
  const size_t groups = GroupCount(lane + count);
  const auto begins = log_probs.begins.subspan(group, groups + 1);
  const auto counts = log_probs.counts.subspan(group * kGroupPositions, groups * kGroupPositions);
  staged.counts = StageInput(counts);
  staged.begins = StageInput(begins);
  if (log_probs.encoding == LogProbEncoding::kFixed12) {
    constexpr size_t kBytes = RowBytes(LogProbEncoding::kFixed12);
    const auto multipliers = log_probs.multipliers.subspan(group * kBytes);
    staged.multipliers =
        StageInput(multipliers.first(std::min(groups * kBytes, multipliers.size())));
  }
  // A code of even number begins a byte.
  const size_t odd = begins.front() % 2;
  const size_t first_code = begins.front() - odd;
  const int bits = LogProbBits(log_probs.encoding);
  const size_t from = PackedValueBytes(first_code, bits);
  const size_t to = PackedValueBytes(begins.back(), bits);
  staged.behavior = {StageInput(log_probs.codes.subspan(from, to - from)), RowLayout::kRagged,
                     log_probs.encoding, static_cast<uint8_t>(lane)};
  const size_t slots = parameters_.slots;
  staged.current = input_end_;
  const size_t current_begin = input_end_ + odd * sizeof(float);
  if (current.counts.empty()) {
    ragged_copies_in_.push_back(
        {counts, lane, Part(current.log_probs, first * slots, count * slots), current_begin});
  } else {
    const auto sum = [](std::span<const uint16_t> some) {
      return std::accumulate(some.begin(), some.end(), size_t{0});
    };
    const size_t before = sum(current.counts.first(first));
    const size_t used = sum(current.counts.subspan(first, count));
    copies_in_.push_back({std::as_bytes(current.log_probs.subspan(before, used)),
                          current_begin + sum(counts.first(lane)) * sizeof(float)});
  }
  input_end_ += Aligned((begins.back() - first_code) * sizeof(float));
}

size_t Batch::Take(const Stretch& stretch, size_t first) {
  const BehaviorView& behavior = stretch.behavior;
  const CurrentView& current = stretch.current;
  const OutputView& output = stretch.output;
  const size_t count =
      std::min(PiecePositions(parameters_.slots), behavior.sampled_log_probs.size() - first);
  if (count == 0) return 0;

  const FixedRows fixed = FixedRowsOf(behavior);
  const size_t most_uploaded =
      std::min(ResidentRows::CellBytes(fixed.bytes.size()), ResidentRows::kSlabBytes);
  if (uploads_offset() + upload_bytes_ + most_uploaded + MostInputBytes(count, parameters_.slots) >
          input_capacity_ ||
      output_bytes() + MostOutputBytes(count) > output_capacity_) {
    return 0;
  }

  // Stretches of one sequence mostly share their sums.
  if (sums_.empty() || sums_.back() != stretch.sums) sums_.push_back(stretch.sums);
  StagedStretch staged{};
  staged.sequence_key = stretch.sequence_key;
  staged.first_position = stretch.first_position + static_cast<uint32_t>(first);
  staged.count = static_cast<uint32_t>(count);
  staged.sums = static_cast<uint32_t>(sums_.size() - 1);
  // REDUCED reads few bytes of the rows: not worth copying them all.
  const size_t old_copies = rows_.copies().size();
  const std::optional<size_t> copy = rows_.Find(fixed, !current.reduced());
  if (rows_.copies().size() > old_copies) {
    upload_bytes_ += ResidentRows::CellBytes(fixed.bytes.size());
  }
  staged.resident = copy.has_value();
  const auto place = [&](auto array) -> uint64_t {
    if (!copy.has_value()) return StageInput(array);
    return *copy +
           static_cast<size_t>(std::as_bytes(array).data() - behavior.fixed_rows.bytes.data());
  };
  if (!current.reduced()) {
    if (behavior.ragged_log_probs.empty()) {
      staged.behavior = PlaceBehavior(behavior, first, count, place);
      const size_t slots = parameters_.slots;
      staged.current = StageInput(current.log_probs.subspan(first * slots, count * slots));
    } else {
      StageRagged(behavior.ragged_log_probs, current, first, count, staged);
    }
  }
  staged.behavior_sampled_log_probs = place(Part(behavior.sampled_log_probs, first, count));
  staged.sampled_ranks = place(behavior.sampled_ranks.subspan(first, count).memory());
  staged.byte_ranks = behavior.sampled_ranks.bytes() != nullptr;
  staged.current_sampled_log_probs = StageInput(Part(current.sampled_log_probs, first, count));
  if (current.reduced()) {
    staged.log_envelopes = StageInput(Part(current.log_envelopes, first, count));
    staged.covered_masses = StageInput(Part(current.covered_masses, first, count));
  }
  staged.decisions = StageOutput(Part(output.decisions, first, count));
  staged.acceptance_probabilities =
      StageOutput(Part(output.acceptance_probabilities, first, count));
  staged.log_modified_ratios = StageOutput(Part(output.log_modified_ratios, first, count));
  staged.modified_ratios = StageOutput(Part(output.modified_ratios, first, count));
  staged.log_ratios = StageOutput(Part(output.log_ratios, first, count));
  staged.output_log_envelopes = StageOutput(Part(output.log_envelopes, first, count));
  staged.output_covered_masses = StageOutput(Part(output.covered_masses, first, count));
  const auto number = static_cast<uint32_t>(stretches_.size());
  stretches_.push_back(staged);
  for (int32_t tile = -int32_t{staged.behavior.first_lane}; tile < static_cast<int32_t>(count);
       tile += kTilePositions) {
    tiles_.push_back({number, tile});
  }
  return count;
}

void Batch::WriteInput(std::byte* input) const {
  for (const CopyIn& copy : copies_in_) {
    std::memcpy(input + copy.offset, copy.from.data(), copy.from.size());
  }
  const size_t slots = parameters_.slots;
  for (const RaggedCopyIn& copy : ragged_copies_in_) {
    WriteUsedSlots(copy.log_probs, slots, copy.counts, copy.first_lane,
                   reinterpret_cast<float*>(input + copy.offset));
  }
  std::memcpy(input + stretches_offset(), stretches_.data(),
              stretches_.size() * sizeof(StagedStretch));
  std::memcpy(input + tiles_offset(), tiles_.data(), tiles_.size() * sizeof(StagedTile));
  std::byte* upload = input + uploads_offset();
  for (const ResidentRows::Use::Copy& copy : rows_.copies()) {
    std::memcpy(upload, copy.from.data(), copy.from.size());
    upload += ResidentRows::CellBytes(copy.from.size());
  }
}

std::vector<Batch::Upload> Batch::Uploads() const {
  std::vector<Upload> uploads;
  size_t from = uploads_offset();
  for (const ResidentRows::Use::Copy& copy : rows_.copies()) {
    const size_t bytes = ResidentRows::CellBytes(copy.from.size());
    if (!uploads.empty() && uploads.back().to + uploads.back().bytes == copy.to) {
      uploads.back().bytes += bytes;
    } else {
      uploads.push_back({from, copy.to, bytes});
    }
    from += bytes;
  }
  return uploads;
}

BatchView Batch::View(const std::byte* input, const std::byte* resident, std::byte* output) const {
  return {
      .slots = parameters_.slots,
      .top_k = parameters_.top_k,
      .draw = parameters_.draw,
      .total_variation = parameters_.total_variation,
      .tile_count = static_cast<uint32_t>(tiles_.size()),
      .tiles = reinterpret_cast<const StagedTile*>(input + tiles_offset()),
      .stretches = reinterpret_cast<const StagedStretch*>(input + stretches_offset()),
      .sums = reinterpret_cast<SumFields*>(output + sums_offset()),
      .input = input,
      .resident = resident,
      .output = output,
  };
}

void Batch::ReadOutput(const std::byte* output, std::vector<PendingSums>& sums) const {
  for (const CopyOut& copy : copies_out_) {
    std::memcpy(copy.to.data(), output + copy.offset, copy.to.size());
  }
  for (size_t i = 0; i < sums_.size(); ++i) {
    SumFields fields;
    std::memcpy(&fields, output + sums_offset() + i * sizeof(fields), sizeof(fields));
    sums.push_back({sums_[i], std::bit_cast<Sums>(fields)});
  }
}

}  // namespace sis::cuda
