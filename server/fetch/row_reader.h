// The rows of a FetchTopK, read from the cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/page/encoded_page.h"
#include "server/cache/run.h"
#include "server/fetch/slice_summary.h"
#include "server/fetch/wanted_records.h"
#include "server/messages/slices.h"

namespace sis {

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
  size_t Read(const UsedRows& rows);
  // The same of so many, until the next call; `ids` and `log_probs` are of the slots that they
  // have.
  UsedRows ReadIntoScratch(uint32_t count);
  // Memory for the counts of rows that Read is given.
  std::span<uint16_t> CountsScratch(size_t count);

 private:
  // Those from this position of the present slice on.
  size_t ReadSlice(uint32_t first_position, const UsedRows& rows);
  // Rows without a record.
  size_t WriteMissing(const UsedRows& rows);
  // The same rows of K slots each, with scratch memory for the ranks.
  RecordRows Padded(const UsedRows& rows);

  FetchSource* source_;
  size_t slice_;  // of the next row
  size_t end_;
  uint32_t row_ = 0;  // of its slice
  uint64_t rows_left_ = 0;

  // Used again.
  struct {
    std::vector<int32_t> sampled_ids, ids;
    std::vector<float> sampled_log_probs, log_probs;
    std::vector<uint16_t> ranks;
    std::vector<uint16_t> counts;
  } scratch_;
  RowBuffer rows_buffer_;
};

}  // namespace sis
