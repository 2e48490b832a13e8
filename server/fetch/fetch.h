// FetchTopK: the recorded sets back to the trainer, chunk by chunk.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/cache/run.h"
#include "server/fetch/slice_summary.h"
#include "server/fetch/wanted_columns.h"
#include "server/fetch/wanted_records.h"
#include "server/messages/slices.h"
#include "server/wire/answers_in_segment.h"
#include "server/wire/received_arrays.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// The messages of one FetchTopK, made one after the other. Used by one thread at a time; keeps its
// sequences in memory until their rows are in a message, or in the segment.
class Fetch {
 public:
  // Checks the request, whose arrays know its segment, and takes the lease if one is asked for.
  static absl::StatusOr<Fetch> Open(std::shared_ptr<Run> run, const v1::FetchTopKRequest& request,
                                    const ReceivedArrays& arrays = {});

  // Writes the next message; false if there is none left. The header is first. If the rows go to a
  // segment, the message after the header copies those that CopySome has not.
  bool Next(v1::FetchTopKResponse& message);
  // Copies the next 128 KiB or so to the request's segment; false if there is nothing to copy.
  bool CopySome();

  // Whether the rows go to the request's segment.
  bool in_segment() const { return answers_.has_value(); }
  const std::string& run_id() const { return run_->id(); }
  size_t slices() const { return slices_.size(); }
  uint64_t rows() const { return rows_; }

 private:
  explicit Fetch(std::shared_ptr<Run> run) : run_(std::move(run)) {}

  void WriteHeader(v1::FetchTopKHeader& header) const;
  void WriteChunk(v1::FetchTopKChunk& chunk);
  // Those without unused slots; returns how many rows.
  uint32_t WriteRagged(v1::FetchTopKChunk& chunk);
  // The next rows, as many as `rows` has room for. Returns how many slots they have, all of them
  // unless ragged.
  size_t ReadNext(const UsedRows& rows);
  // The same of so many, until the next call; `ids` and `log_probs` are of the slots that they
  // have.
  UsedRows ReadIntoScratch(uint32_t count);
  // Those from this position of the present slice on, their columns into the rows from `row` on.
  size_t ReadRows(uint32_t first_position, const UsedRows& rows, uint32_t row);
  // Rows without a record.
  size_t WriteMissing(const UsedRows& rows);
  // The same rows of K slots each, with scratch memory for the ranks.
  RecordRows Padded(const UsedRows& rows);
  // Of an array among the answers; the counts of ragged ones are the third.
  static constexpr size_t kCountsIndex = 2;
  size_t IndexOf(v1::RecordArray array) const {
    return array - v1::SAMPLED_IDS + (ragged_ && array >= v1::TOP_K_IDS ? 1 : 0);
  }
  // Of the first column, among the answers.
  size_t ColumnsIndex() const { return WantedRecords::kArrays + (ragged_ ? 1 : 0); }
  // Goes to the slice that has the next row, and lets go of those before; false if none has.
  bool SkipFullSlices();
  // How many rows come next, of all slices or of the present one, if they are to have so many
  // bytes.
  uint32_t CountRows(size_t bytes, bool spans_slices) const;

  std::shared_ptr<Run> run_;
  std::vector<SliceRange> slices_;
  std::vector<SliceSummary> summaries_;  // of the slices; header and rows agree with them
  WantedRecords wanted_;
  WantedColumns columns_;  // with those of ReadNext
  uint64_t lease_id_ = 0;
  uint64_t oldest_fresh_version_ = 0;        // as of the summaries
  std::optional<AnswersInSegment> answers_;  // of the sizes of all rows
  bool chunks_span_slices_ = false;
  bool ragged_ = false;
  uint64_t rows_ = 0;  // of all slices
  bool header_written_ = false;
  bool answered_ = false;  // in the segment
  // The next row: of a slice, and of all.
  size_t slice_ = 0;
  uint32_t row_ = 0;
  uint64_t rows_done_ = 0;
  uint64_t slots_done_ = 0;  // of these rows, in the segment

  // On the way to the segment, or not sent. Used again.
  struct {
    std::vector<int32_t> sampled_ids, ids;
    std::vector<float> sampled_log_probs, log_probs;
    std::vector<uint16_t> ranks;
    std::vector<uint16_t> counts;
  } scratch_;
  RowBuffer rows_buffer_;
};

}  // namespace sis
