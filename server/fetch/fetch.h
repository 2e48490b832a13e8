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
#include "server/threads/worker_pool.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// The messages of one FetchTopK, made one after the other. Used by one thread at a time; keeps its
// sequences in memory until their rows are in a message.
class Fetch {
 public:
  // Checks the request, and keeps its sequences as it asks. Idle workers help, if there are any.
  static absl::StatusOr<Fetch> Open(std::shared_ptr<Run> run, const v1::FetchTopKRequest& request,
                                    WorkerPool* workers = nullptr);

  // Writes the next message; false if there is none left. The header is first.
  bool Next(v1::FetchTopKResponse& message);

  const std::string& run_id() const { return source_->run->id(); }
  size_t slices() const { return source_->slices.size(); }
  uint64_t rows() const { return rows_; }

 private:
  explicit Fetch(WorkerPool* workers) : workers_(workers) {}

  size_t threads() const { return workers_ == nullptr ? 1 : workers_->threads(); }
  void Summarize();
  void WriteHeader(v1::FetchTopKHeader& header) const;
  void WriteChunk(v1::FetchTopKChunk& chunk);
  // Those without unused slots; returns how many rows.
  uint32_t WriteRagged(v1::FetchTopKChunk& chunk);

  WorkerPool* workers_;  // null if there are none
  std::unique_ptr<FetchSource> source_ = std::make_unique<FetchSource>();
  uint64_t rows_ = 0;  // of all slices
  bool chunks_span_slices_ = false;
  std::optional<RowReader> reader_;
  bool header_written_ = false;
};

}  // namespace sis
