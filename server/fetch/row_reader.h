// The rows of a FetchTopK, read from the cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "server/cache/run.h"
#include "server/fetch/slice_summary.h"
#include "server/fetch/wanted_records.h"
#include "server/messages/slices.h"

namespace sis {

// Records as arrays, one row a position. Rows without a record have sampled id -1, log-prob NaN and
// no slots. Padded sets have K slots, and -1 and -inf in unused ones; ragged ones only used slots.
struct FetchedRows {
  std::span<int32_t> sampled_ids;      // [n]; or empty, as the others but counts may be
  std::span<float> sampled_log_probs;  // [n]
  std::span<uint16_t> counts;          // [n]
  std::span<int32_t> ids;
  std::span<float> log_probs;
};

// What is fetched. Slices whose rows have been read are let go of.
struct FetchSource {
  std::shared_ptr<Run> run;
  WantedRecords wanted;
  bool ragged = false;
  std::vector<SliceRange> slices;
  uint64_t oldest_fresh_version = 0;
  // Of the slices, with that version; the rows agree with them.
  std::vector<SliceSummary> summaries;
};

// Reads the rows of consecutive slices, one after the other. Used by one thread at a time; readers
// of other slices of the same source may be used side by side with it.
class RowReader {
 public:
  // What is decoded at once, so that it is in the core's cache when it is copied from there.
  static constexpr size_t kPieceBytes = size_t{128} << 10;

  // Of the slices [begin, end) of the source, which must outlive the reader.
  RowReader(FetchSource& source, size_t begin, size_t end);

  // Goes to the slice that has the next row, and lets go of those before; false if none has.
  bool SkipFullSlices();
  // Of the next row.
  size_t slice() const { return slice_; }
  uint32_t position() const { return source_->slices[slice_].first_position + row_; }
  // How many rows come next, of all slices or of the present one, if they are to have so many
  // bytes.
  uint32_t CountRows(size_t bytes, bool spans_slices) const;
  // The next rows, as many as `rows` has room for. Returns how many slots they have, all of them
  // unless ragged.
  size_t Read(const FetchedRows& rows);
  // The same of so many, until the next call; `ids` and `log_probs` are of the slots that they
  // have.
  FetchedRows ReadIntoScratch(uint32_t count);
  // Memory for the counts of rows that Read is given.
  std::span<uint16_t> CountsScratch(size_t count);

 private:
  // Those from this position of the present slice on.
  size_t ReadSlice(uint32_t first_position, const FetchedRows& rows);
  // Both return how many slots the rows have.
  size_t WriteRecords(const Sequence::Reader::Piece& piece, const FetchedRows& rows);
  size_t WriteMissing(const FetchedRows& rows);

  FetchSource* source_;
  size_t slice_;  // of the next row
  size_t end_;
  uint32_t row_ = 0;  // of its slice
  uint64_t rows_left_ = 0;

  // Used again.
  struct {
    std::vector<int32_t> sampled_ids, ids;
    std::vector<float> sampled_log_probs, log_probs;
    std::vector<uint16_t> counts;
  } scratch_;
};

}  // namespace sis
