#include "kernels/cuda/evaluate/batch.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <optional>

namespace sis::cuda {
namespace {

// The size of a sector of device memory, at least any element's alignment.
constexpr size_t kAlignment = 32;

constexpr size_t Aligned(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

template <typename T>
std::span<T> Part(std::span<T> array, size_t first, size_t count) {
  return array.empty() ? array : array.subspan(first, count);
}

size_t SumOf(std::span<const uint8_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), size_t{0});
}

}  // namespace

void Batch::Reset(const EvaluateParameters& parameters) {
  parameters_ = parameters;
  ranges_.clear();
  tiles_.clear();
  sums_.clear();
  copies_in_.clear();
  copies_out_.clear();
  blocks_.Abandon();
  upload_bytes_ = 0;
  input_end_ = 0;
  output_end_ = 0;
}

size_t Batch::ranges_offset() const { return input_end_; }
size_t Batch::tiles_offset() const {
  return ranges_offset() + Aligned(ranges_.size() * sizeof(StagedRange));
}
size_t Batch::input_bytes() const { return tiles_offset() + tiles_.size() * sizeof(StagedTile); }
size_t Batch::uploads_offset() const { return Aligned(input_bytes()); }
size_t Batch::sums_offset() const { return output_end_; }
size_t Batch::output_bytes() const { return output_end_ + sums_.size() * sizeof(Sums); }

template <typename T>
uint64_t Batch::StageInput(std::span<const T> array) {
  const uint64_t offset = input_end_;
  if (!array.empty()) copies_in_.push_back({std::as_bytes(array), offset});
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

size_t Batch::Take(const BackendRange& range, size_t first) {
  const BlockRange& behavior = range.behavior;
  const CurrentView& current = range.current;
  const OutputView& output = range.output;
  const size_t copy_bytes =
      behavior.tag != nullptr ? ResidentBlocks::CopyBytes(behavior.block.size()) : 0;
  if (first == behavior.size() ||
      uploads_offset() + upload_bytes_ + copy_bytes + kRangeBytes + kMaxTileBytes >
          input_capacity_ ||
      output_bytes() + kRangeBytes + kTileOutputBytes > output_capacity_) {
    return 0;
  }
  const size_t old_uploads = blocks_.uploads().size();
  const std::optional<size_t> copy = blocks_.Find(behavior.block, behavior.tag);
  if (blocks_.uploads().size() > old_uploads) upload_bytes_ += copy_bytes;

  const size_t log_prob_bytes = behavior.encoding == BlockEncoding::kFixed16 ? 2 : sizeof(float);
  const size_t slot_bytes = sizeof(float) + (copy.has_value() ? 0 : log_prob_bytes);
  const auto number = static_cast<uint32_t>(ranges_.size());
  size_t input_end = uploads_offset() + upload_bytes_ + kRangeBytes;
  size_t output_end = output_bytes() + kRangeBytes;
  size_t count = 0;
  size_t slots = 0;
  while (first + count < behavior.size()) {
    const size_t positions = std::min<size_t>(kTilePositions, behavior.size() - first - count);
    const size_t tile_slots = SumOf(behavior.counts.subspan(first + count, positions));
    input_end += kTileInputBytes + tile_slots * slot_bytes;
    output_end += kTileOutputBytes;
    if (input_end > input_capacity_ || output_end > output_capacity_) break;
    tiles_.push_back({number, static_cast<uint32_t>(count), static_cast<uint32_t>(slots)});
    count += positions;
    slots += tile_slots;
  }

  // Consecutive ranges of one sequence usually share their sums.
  if (sums_.empty() || sums_.back() != range.sums) sums_.push_back(range.sums);
  StagedRange staged{};
  staged.sequence_key = range.sequence_key;
  staged.first_position = range.first_position + static_cast<uint32_t>(first);
  staged.count = static_cast<uint32_t>(count);
  staged.sums = static_cast<uint32_t>(sums_.size() - 1);
  staged.encoding = behavior.encoding;
  staged.resident = copy.has_value();
  const auto place = [&](auto array) -> uint64_t {
    if (!copy.has_value()) return StageInput(array);
    return *copy + static_cast<size_t>(std::as_bytes(array).data() - behavior.block.data());
  };
  const size_t first_slot = SumOf(behavior.counts.first(first));
  staged.log_probs =
      place(std::span(behavior.log_probs + log_prob_bytes * first_slot, log_prob_bytes * slots));
  if (!behavior.multipliers.empty()) {
    staged.multipliers = place(behavior.multipliers.subspan(first, count));
  }
  staged.counts = place(behavior.counts.subspan(first, count));
  staged.current_log_probs = StageInput(current.log_probs.subspan(first_slot, slots));
  staged.ranks = place(behavior.ranks.subspan(first, count));
  staged.sampled_log_probs = place(behavior.sampled_log_probs.subspan(first, count));
  staged.current_sampled_log_probs = StageInput(current.sampled_log_probs.subspan(first, count));
  staged.decisions = StageOutput(output.decisions.subspan(first, count));
  staged.acceptance_probabilities =
      StageOutput(Part(output.acceptance_probabilities, first, count));
  staged.log_modified_ratios = StageOutput(Part(output.log_modified_ratios, first, count));
  staged.modified_ratios = StageOutput(Part(output.modified_ratios, first, count));
  staged.log_ratios = StageOutput(Part(output.log_ratios, first, count));
  staged.output_log_envelopes = StageOutput(Part(output.log_envelopes, first, count));
  staged.output_covered_masses = StageOutput(Part(output.covered_masses, first, count));
  ranges_.push_back(staged);
  return count;
}

void Batch::WriteInput(std::byte* input) const {
  for (const CopyIn& copy : copies_in_) {
    std::memcpy(input + copy.offset, copy.from.data(), copy.from.size());
  }
  std::memcpy(input + ranges_offset(), ranges_.data(), ranges_.size() * sizeof(StagedRange));
  std::memcpy(input + tiles_offset(), tiles_.data(), tiles_.size() * sizeof(StagedTile));
  std::byte* upload = input + uploads_offset();
  for (const ResidentBlocks::Use::Upload& block : blocks_.uploads()) {
    std::memcpy(upload, block.from.data(), block.from.size());
    upload += ResidentBlocks::CopyBytes(block.from.size());
  }
}

std::vector<Batch::Upload> Batch::Uploads() const {
  std::vector<Upload> uploads;
  size_t from = uploads_offset();
  for (const ResidentBlocks::Use::Upload& block : blocks_.uploads()) {
    const size_t bytes = ResidentBlocks::CopyBytes(block.from.size());
    if (!uploads.empty() && uploads.back().to + uploads.back().bytes == block.to) {
      uploads.back().bytes += bytes;
    } else {
      uploads.push_back({from, block.to, bytes});
    }
    from += bytes;
  }
  return uploads;
}

BatchView Batch::View(const std::byte* input, const std::byte* resident, std::byte* output) const {
  return {
      .top_k = std::min(parameters_.top_k, kMaxBlockSlots),
      .draw = parameters_.draw,
      .tile_count = static_cast<uint32_t>(tiles_.size()),
      .tiles = reinterpret_cast<const StagedTile*>(input + tiles_offset()),
      .ranges = reinterpret_cast<const StagedRange*>(input + ranges_offset()),
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
