#include "kernels/block/pack.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/block/fixed16.h"
#include "kernels/block/validate.h"
#include "kernels/block/write_rows.h"

namespace sis {
namespace {

// Writes the sections of a block one after the other.
class Writer {
 public:
  // `block` has space for `bytes`. WriteCodes and WriteIds write beyond their sections, for which
  // it needs kBlockSlack more.
  Writer(const BlockHeader& header, std::byte* block, size_t bytes) : block_(block, bytes) {
    Append(&header, sizeof header);
  }
  void Append(const void* from, size_t bytes) {
    std::byte* const to = Next(bytes);
    if (bytes > 0) std::memcpy(to, from, bytes);  // else `from` may be null
  }
  // The caller must write the next bytes there.
  std::byte* Next(size_t bytes) {
    size_ += bytes;
    return block_.data() + size_ - bytes;
  }
  void FillTo(size_t offset) {
    std::fill(block_.begin() + static_cast<ptrdiff_t>(size_),
              block_.begin() + static_cast<ptrdiff_t>(offset), std::byte{0});
    size_ = offset;
  }
  void Seal() {
    FillTo(block_.size());
    SealBlock(block_);
  }

 private:
  const std::span<std::byte> block_;
  size_t size_ = 0;
};

BlockHeader HeaderOf(const PackOptions& options, size_t positions) {
  BlockHeader header = {};
  std::memcpy(header.magic, "SISB", sizeof header.magic);
  header.version = 1;
  header.encoding = options.encoding;
  header.id_bytes = LeastIdBytes(static_cast<uint32_t>(options.vocabulary_size));
  header.slots = static_cast<uint8_t>(options.slots);
  header.vocabulary_size = static_cast<uint32_t>(options.vocabulary_size);
  header.first_position = options.first_position;
  header.positions = static_cast<uint32_t>(positions);
  header.policy_version = options.policy_version;
  return header;
}

}  // namespace

absl::Status PackBlock(const RecordView& records, const PackOptions& options,
                       absl::FunctionRef<std::byte*(size_t)> allocate) {
  const size_t positions = records.sampled_ids.size();
  const auto slots = static_cast<size_t>(options.slots);
  if (positions < 1 || positions > kMaxBlockPositions) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampled_ids: ", positions, " positions, must be in [1, 4096]"));
  }
  std::vector<uint8_t> counts(positions), ranks(positions);
  if (absl::Status status = ValidateRecords(records, options.slots, options.vocabulary_size,
                                            options.first_position, options.mass, counts, ranks);
      !status.ok()) {
    return status;
  }
  BlockHeader header = HeaderOf(options, positions);
  std::vector<uint8_t> multipliers(header.fixed() ? positions : 0);
  for (size_t i = 0; i < positions; ++i) {
    const float* log_probs = records.log_probs.data() + i * slots;
    if (header.fixed()) {
      while (counts[i] > 0 && log_probs[counts[i] - 1] < kFloor16) --counts[i];
      const uint32_t deepest = counts[i] > 0 ? Depth16(log_probs[counts[i] - 1]) : 0;
      multipliers[i] = LeastMultiplier16(deepest);
      if (ranks[i] >= counts[i]) ranks[i] = kBlockRankOutside;
    }
    header.used_slots += counts[i];
  }
  const BlockLayout at(header);
  if (at.end > kMaxBlockBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("block: ", at.end, " bytes of ", positions, " positions are above 1 MiB"));
  }

  std::byte* const block = allocate(at.end);
  if (block == nullptr) return absl::ResourceExhaustedError("no room for the block");
  Writer writer(header, block, at.end);
  std::byte* const log_probs = writer.Next(at.multipliers - at.log_probs);
  if (header.fixed()) {
    WriteCodes(records.log_probs, slots, counts, multipliers, log_probs);
  } else {
    std::byte* to = log_probs;
    for (size_t i = 0; i < positions; ++i) {
      std::memcpy(to, records.log_probs.data() + i * slots, counts[i] * sizeof(float));
      to += counts[i] * sizeof(float);
    }
  }
  writer.Append(multipliers.data(), multipliers.size());
  writer.Append(ranks.data(), positions);
  writer.FillTo(at.sampled_log_probs);
  writer.Append(records.sampled_log_probs.data(), positions * sizeof(float));
  writer.Append(counts.data(), positions);
  for (size_t first = 0; first < positions; first += kMaxBlockSlots) {
    const size_t some = std::min<size_t>(kMaxBlockSlots, positions - first);
    const auto count = static_cast<uint8_t>(some);
    WriteIds(records.sampled_ids.subspan(first, some), some, {&count, 1}, header.id_bytes,
             writer.Next(some * header.id_bytes));
  }
  WriteIds(records.ids, slots, counts, header.id_bytes, writer.Next(at.ids_end - at.ids));
  writer.Seal();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::byte>> PackBlock(const RecordView& records,
                                                 const PackOptions& options) {
  std::vector<std::byte> block;
  absl::Status packed = PackBlock(records, options, [&](size_t bytes) {
    block.resize(bytes + kBlockSlack);
    return block.data();
  });
  if (!packed.ok()) return packed;
  block.resize(block.size() - kBlockSlack);
  return block;
}

absl::Status MergeBlocks(std::span<const BlockView> blocks,
                         absl::FunctionRef<std::byte*(size_t)> allocate) {
  BlockHeader header = blocks[0].header;
  for (const BlockView& block : blocks.subspan(1)) {
    const BlockHeader& next = block.header;
    if (header.encoding != next.encoding || header.id_bytes != next.id_bytes ||
        header.slots != next.slots || header.vocabulary_size != next.vocabulary_size ||
        header.policy_version != next.policy_version) {
      return absl::InvalidArgumentError("blocks of different headers can't be merged");
    }
    if (uint64_t{header.first_position} + header.positions != next.first_position) {
      return absl::InvalidArgumentError(absl::StrCat("a block from position ", next.first_position,
                                                     " does not follow ", header.positions,
                                                     " positions from ", header.first_position));
    }
    header.positions += next.positions;
    header.used_slots += next.used_slots;
    const size_t bytes = BlockLayout(header).end;
    if (header.positions > kMaxBlockPositions || bytes > kMaxBlockBytes) {
      return absl::InvalidArgumentError(absl::StrCat("a merged block would have ", header.positions,
                                                     " positions and ", bytes,
                                                     " bytes, above 4096 or 1 MiB"));
    }
  }
  const BlockLayout at(header);
  Writer writer(header, allocate(at.end), at.end);
  const auto join = [&](size_t BlockLayout::*begin, size_t BlockLayout::*end) {
    writer.FillTo(at.*begin);
    for (const BlockView& block : blocks) {
      const BlockLayout own(block.header);
      writer.Append(block.bytes.data() + own.*begin, own.*end - own.*begin);
    }
  };
  join(&BlockLayout::log_probs, &BlockLayout::multipliers);
  join(&BlockLayout::multipliers, &BlockLayout::ranks);
  join(&BlockLayout::ranks, &BlockLayout::ranks_end);
  join(&BlockLayout::sampled_log_probs, &BlockLayout::counts);
  join(&BlockLayout::counts, &BlockLayout::sampled_ids);
  join(&BlockLayout::sampled_ids, &BlockLayout::ids);
  join(&BlockLayout::ids, &BlockLayout::ids_end);
  writer.Seal();
  return absl::OkStatus();
}

std::vector<std::byte> SliceBlock(const BlockView& block, uint32_t first, uint32_t count) {
  const BlockRange range(block, first, count);
  BlockHeader header = block.header;
  header.first_position += first;
  header.positions = count;
  header.used_slots = static_cast<uint32_t>(range.used_slots);
  const size_t slots_before = std::accumulate(block.counts, block.counts + first, size_t{0});
  const BlockLayout from(block.header), to(header);
  std::vector<std::byte> slice(to.end);
  Writer writer(header, slice.data(), to.end);
  const auto cut = [&](size_t BlockLayout::*section, size_t begin, size_t size, size_t width) {
    writer.FillTo(to.*section);
    writer.Append(block.bytes.data() + from.*section + begin * width, size * width);
  };
  cut(&BlockLayout::log_probs, slots_before, header.used_slots,
      header.fixed() ? sizeof(uint16_t) : sizeof(float));
  if (header.fixed()) cut(&BlockLayout::multipliers, first, count, 1);
  cut(&BlockLayout::ranks, first, count, 1);
  cut(&BlockLayout::sampled_log_probs, first, count, sizeof(float));
  cut(&BlockLayout::counts, first, count, 1);
  cut(&BlockLayout::sampled_ids, first, count, header.id_bytes);
  cut(&BlockLayout::ids, slots_before, header.used_slots, header.id_bytes);
  writer.Seal();
  return slice;
}

}  // namespace sis
