// One stream of behaviour log-probs into the service.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/types.h"
#include "kernels/validate.h"
#include "sis/v1/ratio_service.grpc.pb.h"

namespace sis {

struct AppendOptions {
  // For the server's messages and metrics.
  std::string worker = {};
  // Entries are sent together until a batch has so many bytes.
  size_t batch_bytes = 256 << 10;
  // Batches sent and not yet acked. When so many are under way and another is full, calls block.
  size_t max_batches_in_flight = 8;
  // How long a block that finds the server over budget is offered again, before it counts as
  // refused.
  absl::Duration retry_limit = absl::Minutes(2);
};

// An entry that the server did not take.
struct RefusedEntry {
  SequenceRef sequence;
  absl::Status status;
};

// Entries are applied in the order of the calls, but a block for which there was no room may come
// after later blocks and seals. An entry is sent at once while nothing is under way, and otherwise
// together with those that come after it. The calls are thread-safe; they block while the server is
// behind. Once the stream is broken every call returns why; what was not flushed may or may not be
// stored, and can be sent again on another stream, as re-sending is idempotent.
class AppendStream {
 public:
  // Use Client::Append.
  AppendStream(std::shared_ptr<v1::RatioService::Stub> stub, v1::AppendHeader header,
               const AppendOptions& options);
  // Gives up what was not flushed.
  ~AppendStream();
  AppendStream(const AppendStream&) = delete;
  AppendStream& operator=(const AppendStream&) = delete;

  // T positions from first_position on, sampled by the weights of policy_version. The arrays are
  // copied.
  absl::Status Block(const SequenceRef& sequence, uint32_t first_position, uint64_t policy_version,
                     const RecordView& records);
  // Drops the positions from `length` on. Waits for the acks of all entries before it: a block that
  // has to be sent again must not come after it.
  absl::Status Truncate(const SequenceRef& sequence, uint32_t length);
  // No position at or beyond `length` will come.
  absl::Status Seal(const SequenceRef& sequence, uint32_t length);

  // Waits until every entry is acked; returns those refused since the last call.
  absl::StatusOr<std::vector<RefusedEntry>> Flush();
  // Flushes and ends the stream: no other call may follow.
  absl::StatusOr<std::vector<RefusedEntry>> Finish();

 private:
  struct Entry {
    v1::AppendEntry message;
    // When the server first had no room for it.
    absl::Time first_exhausted = absl::InfiniteFuture();
  };
  struct Batch {
    v1::AppendRequest request;
    std::vector<absl::Time> first_exhausted;  // one per entry of the request
  };

  absl::Status Enqueue(v1::AppendEntry message) ABSL_LOCKS_EXCLUDED(mutex_);
  bool Idle() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::vector<RefusedEntry>> TakeRefused() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // The two threads: one writes batches, the other reads acks and ends the stream.
  void WriteBatches() ABSL_LOCKS_EXCLUDED(mutex_);
  // The next batch; null when the stream is to be closed or is broken.
  std::shared_ptr<Batch> NextBatch() ABSL_LOCKS_EXCLUDED(mutex_);
  void ReadAcks() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status HandleAcks(const v1::AppendResponse& response) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::shared_ptr<v1::RatioService::Stub> stub_;
  const v1::AppendHeader header_;
  const AppendOptions options_;
  grpc::ClientContext context_;
  const std::unique_ptr<grpc::ClientReaderWriter<v1::AppendRequest, v1::AppendResponse>> stream_;

  absl::Mutex mutex_;
  std::deque<Entry> queue_ ABSL_GUARDED_BY(mutex_);
  size_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // Entries for which there was no room. While there are any, nothing else is sent.
  std::vector<Entry> exhausted_ ABSL_GUARDED_BY(mutex_);
  absl::Time retry_time_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  std::deque<std::shared_ptr<Batch>> in_flight_ ABSL_GUARDED_BY(mutex_);
  std::vector<RefusedEntry> refused_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool reads_ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);

  std::thread writer_;
  std::thread reader_;
};

}  // namespace sis
