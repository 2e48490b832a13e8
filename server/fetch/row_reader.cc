#include "server/fetch/row_reader.h"

#include <algorithm>

namespace sis {
namespace {

// Room for an array if it is wanted, else none.
template <typename T>
std::span<T> Resize(bool wanted, std::vector<T>& array, size_t count) {
  array.resize(wanted ? count : 0);
  return array;
}

// The rows [first, first + count), and what comes from this slot on.
UsedRows SubRows(const UsedRows& rows, size_t first, size_t count, size_t slot) {
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

UsedRows RowReader::ReadIntoScratch(uint32_t count) {
  const size_t most = size_t{count} * source_->run->config().top_k;
  UsedRows rows{
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

size_t RowReader::Read(const UsedRows& rows) {
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

size_t RowReader::ReadSlice(uint32_t first_position, const UsedRows& rows) {
  const SliceRange& slice = source_->slices[slice_];
  if (slice.sequence() == nullptr) return WriteMissing(rows);
  const Sequence::Reader reader(*slice.sequence());  // checked for the header
  size_t slots = 0;
  ForEachPiece(reader, source_->summaries[slice_], first_position,
               static_cast<uint32_t>(rows.counts.size()),
               [&](const Sequence::Reader::Piece& piece) {
                 const uint32_t first = piece.first_position - first_position;
                 const UsedRows part = SubRows(rows, first, piece.count, slots);
                 if (ReasonMissing(piece, source_->oldest_fresh_version).has_value()) {
                   slots += WriteMissing(part);
                   return;
                 }
                 if (source_->ragged) {
                   slots += piece.page->ReadUsed(piece.index, part, rows_buffer_);
                 } else {
                   piece.page->Read(piece.index, Padded(part));
                   slots += size_t{piece.count} * source_->run->config().top_k;
                 }
               });
  return slots;
}

size_t RowReader::WriteMissing(const UsedRows& rows) {
  RecordRows absent = Padded(rows);
  if (!source_->ragged) {
    WriteAbsent(absent);
    return rows.counts.size() * source_->run->config().top_k;
  }
  absent.ids = {};
  absent.log_probs = {};
  WriteAbsent(absent);
  std::ranges::fill(rows.counts, uint16_t{0});
  return 0;
}

RecordRows RowReader::Padded(const UsedRows& rows) {
  const size_t slots = rows.counts.size() * source_->run->config().top_k;
  scratch_.ranks.resize(rows.counts.size());
  return {.sampled_ids = rows.sampled_ids,
          .sampled_log_probs = rows.sampled_log_probs,
          .ids = rows.ids.first(std::min(slots, rows.ids.size())),
          .log_probs = rows.log_probs.first(std::min(slots, rows.log_probs.size())),
          .ranks = scratch_.ranks};
}

}  // namespace sis
