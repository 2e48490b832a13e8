// FetchTopK: the recorded sets back to the trainer, chunk by chunk.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/cache/run.h"
#include "server/fetch/row_reader.h"
#include "server/fetch/segment_rows.h"
#include "server/threads/worker_pool.h"
#include "server/wire/received_arrays.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// The messages of one FetchTopK, made one after the other. Used by one thread at a time; keeps its
// sequences in memory until their rows are in a message, or in the segment.
class Fetch {
 public:
  // Checks the request, whose arrays know its segment, and takes the lease if one is asked for.
  // Idle workers help, here and in CopySome, if there are any.
  static absl::StatusOr<Fetch> Open(std::shared_ptr<Run> run, const v1::FetchTopKRequest& request,
                                    const ReceivedArrays& arrays = {},
                                    WorkerPool* workers = nullptr);

  // Writes the next message; false if there is none left. The header is first. If the rows go to a
  // segment, the message after the header copies those that CopySome has not.
  bool Next(v1::FetchTopKResponse& message);
  // After the header: a turn of copying rows to the request's segment. Whether there is more to
  // copy.
  bool CopySome();

  // Whether the rows go to the request's segment.
  bool in_segment() const { return segment_rows_.has_value(); }
  const std::string& run_id() const { return source_->run->id(); }
  size_t slices() const { return source_->slices.size(); }
  uint64_t rows() const { return rows_; }

 private:
  explicit Fetch(WorkerPool* workers) : workers_(workers) {}

  size_t threads() const { return workers_ == nullptr ? 1 : workers_->threads(); }
  void Summarize(bool count_slots);
  void WriteHeader(v1::FetchTopKHeader& header) const;
  void WriteChunk(v1::FetchTopKChunk& chunk);
  // Those without unused slots; returns how many rows.
  uint32_t WriteRagged(v1::FetchTopKChunk& chunk);

  WorkerPool* workers_;  // null if there are none
  std::unique_ptr<FetchSource> source_ = std::make_unique<FetchSource>();
  uint64_t rows_ = 0;  // of all slices
  bool chunks_span_slices_ = false;
  uint64_t lease_id_ = 0;
  // One of the two.
  std::optional<RowReader> reader_;
  std::optional<SegmentRows> segment_rows_;
  bool header_written_ = false;
  bool answered_ = false;  // in the segment
};

}  // namespace sis
