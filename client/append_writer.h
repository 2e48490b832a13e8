// One stream of behaviour log-probs into the service.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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
class AppendWriter {
 public:
  // Use Client::Append.
  AppendWriter(std::shared_ptr<v1::RatioService::Stub> stub, v1::AppendHeader header,
               const AppendOptions& options);
  // Gives up what was not flushed.
  ~AppendWriter();
  AppendWriter(const AppendWriter&) = delete;
  AppendWriter& operator=(const AppendWriter&) = delete;

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
  using Clock = std::chrono::steady_clock;

  struct Entry {
    v1::AppendEntry message;
    // When the server first had no room for it.
    Clock::time_point first_exhausted = Clock::time_point::max();
  };
  struct Batch {
    v1::AppendRequest request;
    std::vector<Clock::time_point> first_exhausted;  // one per entry of the request
  };

  absl::Status Enqueue(v1::AppendEntry message);
  // With mutex_ held: whether every entry is acked; the refused ones, or why the stream is broken.
  bool Idle() const;
  absl::StatusOr<std::vector<RefusedEntry>> TakeRefused();

  // The two threads: one writes batches, the other reads acks and ends the stream.
  void WriteBatches();
  // The next batch; null when the stream is to be closed or is broken.
  std::shared_ptr<Batch> NextBatch();
  void ReadAcks();
  absl::Status HandleAcks(const v1::AppendResponse& response);

  const std::shared_ptr<v1::RatioService::Stub> stub_;
  const v1::AppendHeader header_;
  const AppendOptions options_;
  grpc::ClientContext context_;
  const std::unique_ptr<grpc::ClientReaderWriter<v1::AppendRequest, v1::AppendResponse>> stream_;

  // Guards all that follows but the threads. Not absl::Mutex: the installed one hides its locks
  // from ThreadSanitizer.
  std::mutex mutex_;
  // Notified whenever any of it changes.
  std::condition_variable changed_;
  std::deque<Entry> queue_;
  size_t queued_bytes_ = 0;
  // Entries for which there was no room. While there are any, nothing else is sent.
  std::vector<Entry> exhausted_;
  Clock::time_point retry_time_ = Clock::time_point::min();
  std::deque<std::shared_ptr<Batch>> in_flight_;
  std::vector<RefusedEntry> refused_;
  bool closing_ = false;
  bool reads_ended_ = false;
  bool ended_ = false;
  absl::Status status_;

  std::thread writer_;
  std::thread reader_;
};

}  // namespace sis
