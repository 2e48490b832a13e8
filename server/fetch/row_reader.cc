#include "server/fetch/row_reader.h"

#include <algorithm>
#include <limits>

#include "kernels/block/pack.h"
#include "kernels/block/read.h"

namespace sis {
namespace {

// Room for an array if it is wanted, else none.
template <typename T>
std::span<T> Resize(bool wanted, std::vector<T>& array, size_t count) {
  array.resize(wanted ? count : 0);
  return array;
}

// The rows [first, first + count), and what comes from this slot on.
FetchedRows SubRows(const FetchedRows& rows, size_t first, size_t count, size_t slot) {
  const auto part = [](auto array, size_t begin, size_t size) {
    return array.empty() ? array : array.subspan(begin, size);
  };
  return {.sampled_ids = part(rows.sampled_ids, first, count),
          .sampled_log_probs = part(rows.sampled_log_probs, first, count),
          .counts = rows.counts.subspan(first, count),
          .ids = part(rows.ids, slot, std::dynamic_extent),
          .log_probs = part(rows.log_probs, slot, std::dynamic_extent)};
}

}  // namespace

RowReader::RowReader(FetchSource& source, size_t begin, size_t end)
    : source_(&source), slice_(begin), end_(end) {
  for (size_t i = begin; i < end; ++i) rows_left_ += source.slices[i].count;
}

std::span<uint16_t> RowReader::CountsScratch(size_t count) {
  return Resize(true, scratch_.counts, count);
}

bool RowReader::SkipFullSlices() {
  while (slice_ < end_ && row_ >= source_->slices[slice_].count) {
    source_->summaries[slice_] = {};
    source_->slices[slice_++].found = std::shared_ptr<Sequence>();
    row_ = 0;
  }
  return slice_ < end_;
}

uint32_t RowReader::CountRows(size_t bytes, bool spans_slices) const {
  const size_t row_bytes = source_->wanted.RowBytes(source_->run->config().top_k);
  const uint64_t left = spans_slices ? rows_left_ : source_->slices[slice_].count - row_;
  return static_cast<uint32_t>(std::min<uint64_t>(std::max<size_t>(1, bytes / row_bytes), left));
}

FetchedRows RowReader::ReadIntoScratch(uint32_t count) {
  const size_t most = size_t{count} * source_->run->config().top_k;
  FetchedRows rows{
      .sampled_ids = Resize(source_->wanted.Has(v1::SAMPLED_IDS), scratch_.sampled_ids, count),
      .sampled_log_probs =
          Resize(source_->wanted.Has(v1::SAMPLED_LOG_PROBS), scratch_.sampled_log_probs, count),
      .counts = Resize(true, scratch_.counts, count),
      .ids = Resize(source_->wanted.Has(v1::TOP_K_IDS), scratch_.ids, most),
      .log_probs = Resize(source_->wanted.Has(v1::TOP_K_LOG_PROBS), scratch_.log_probs, most)};
  const size_t slots = Read(rows);
  rows.ids = rows.ids.first(std::min(slots, rows.ids.size()));
  rows.log_probs = rows.log_probs.first(std::min(slots, rows.log_probs.size()));
  return rows;
}

size_t RowReader::Read(const FetchedRows& rows) {
  const auto count = static_cast<uint32_t>(rows.counts.size());
  size_t slots = 0;
  for (uint32_t done = 0; done < count;) {
    const SliceRange& slice = source_->slices[slice_];
    const uint32_t part = std::min(count - done, slice.count - row_);
    slots += ReadSlice(slice.first_position + row_, SubRows(rows, done, part, slots));
    done += part;
    row_ += part;
    SkipFullSlices();
  }
  rows_left_ -= count;
  return slots;
}

size_t RowReader::ReadSlice(uint32_t first_position, const FetchedRows& rows) {
  const SliceRange& slice = source_->slices[slice_];
  if (slice.sequence() == nullptr) return WriteMissing(rows);
  const Sequence::Reader reader(*slice.sequence());  // checked for the header
  size_t slots = 0;
  ForEachPiece(reader, source_->summaries[slice_], first_position,
               static_cast<uint32_t>(rows.counts.size()),
               [&](const Sequence::Reader::Piece& piece) {
                 const uint32_t first = piece.first_position - first_position;
                 const FetchedRows part = SubRows(rows, first, piece.count, slots);
                 if (ReasonMissing(piece, source_->oldest_fresh_version).has_value()) {
                   slots += WriteMissing(part);
                   return;
                 }
                 slots += WriteRecords(piece, part);
               });
  return slots;
}

size_t RowReader::WriteRecords(const Sequence::Reader::Piece& piece, const FetchedRows& rows) {
  const std::vector<std::byte> bytes = SliceBlock(piece.block->view(), piece.index, piece.count);
  const absl::StatusOr<BlockView> block = OpenBlock(bytes, /*checksums=*/false);
  if (!block.ok()) return WriteMissing(rows);
  const size_t slots = source_->run->config().top_k;
  const size_t padded = piece.count * slots;
  const size_t used = block->header.used_slots;
  for (size_t i = 0; i < rows.sampled_ids.size(); ++i) {
    rows.sampled_ids[i] = BlockId(block->sampled_ids, i, block->header.id_bytes);
  }
  std::copy_n(block->sampled_log_probs, rows.sampled_log_probs.size(),
              rows.sampled_log_probs.begin());
  std::copy_n(block->counts, piece.count, rows.counts.begin());
  if (!source_->ragged) {
    if (!rows.ids.empty()) ReadBlockIdRows(*block, slots, rows.ids.first(padded));
    if (!rows.log_probs.empty()) {
      ReadBlockLogProbRows(*block, slots, rows.log_probs.first(padded));
    }
    return padded;
  }
  for (size_t i = 0; i < std::min(used, rows.ids.size()); ++i) {
    rows.ids[i] = BlockId(block->ids, i, block->header.id_bytes);
  }
  const BlockRange range = piece.block->Range(piece.index, piece.count);
  for (size_t i = 0, slot = 0; !rows.log_probs.empty() && i < range.size(); ++i) {
    for (size_t end = slot + range.counts[i]; slot < end; ++slot) {
      rows.log_probs[slot] = range.LogProbAt(i, slot);
    }
  }
  return used;
}

size_t RowReader::WriteMissing(const FetchedRows& rows) {
  std::ranges::fill(rows.sampled_ids, -1);
  std::ranges::fill(rows.sampled_log_probs, std::numeric_limits<float>::quiet_NaN());
  std::ranges::fill(rows.counts, uint16_t{0});
  if (source_->ragged) return 0;
  const size_t slots = rows.counts.size() * source_->run->config().top_k;
  std::ranges::fill(rows.ids.first(std::min(slots, rows.ids.size())), -1);
  std::ranges::fill(rows.log_probs.first(std::min(slots, rows.log_probs.size())), kMinusInfinity);
  return slots;
}

}  // namespace sis
