// An append stream to one server: batches entries, and matches acks with them.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/one_server/append_writer.h"
#include "sis/v1/ratio_service.grpc.pb.h"

namespace sis {

class ServerAppendWriter final : public AppendWriter {
 public:
  ServerAppendWriter(std::shared_ptr<v1::RatioService::Stub> stub, v1::AppendHeader header,
                     const AppendOptions& options);
  ~ServerAppendWriter() override;

  // After an error those are left that were not taken.
  absl::Status Put(std::vector<OutgoingEntry>& entries) override;
  absl::StatusOr<std::vector<RefusedEntry>> Flush() override;
  absl::StatusOr<std::vector<RefusedEntry>> Finish() override;

  // Of a broken stream: what was refused, and what got no ack, refused with the stream's status.
  std::vector<RefusedEntry> GiveUp();

 private:
  using Clock = std::chrono::steady_clock;
  using Stream = grpc::ClientReaderWriter<v1::AppendRequest, v1::AppendResponse>;

  struct Entry : OutgoingEntry {
    // When the server first had no room for it.
    Clock::time_point first_exhausted = Clock::time_point::max();
    int refusals = 0;  // for lack of room
  };
  struct Batch {
    v1::AppendRequest request;
    std::vector<Entry> entries;  // whose messages are in the request
  };

  std::unique_ptr<Stream> OpenStream();
  // With mutex_ held: waits, and gives the stream up if acks, or its end, are overdue. The
  // condition must hold once ended_ does.
  template <typename Condition>
  void WaitFor(std::unique_lock<std::mutex>& lock, Condition condition);
  // With mutex_ held: waits for the turn of an entry, and queues it.
  absl::Status Queue(std::unique_lock<std::mutex>& lock, OutgoingEntry& entry);
  // With mutex_ held: whether every entry is acked; the refused ones, or why the stream is broken.
  bool Idle() const;
  absl::StatusOr<std::vector<RefusedEntry>> TakeRefused();

  // With mutex_ held: whether the writer has something to do; whether the caller writes what is
  // queued itself, as waking the writer takes longer; then what it writes.
  bool WriterIsDue() const;
  bool CallerWrites() const;
  void WakeWriter();
  std::shared_ptr<Batch> TakeBatch();

  // The two threads: one writes batches, the other reads acks and ends the stream.
  void WriteBatches();
  // The next batch; null when the stream is to be closed or is broken.
  std::shared_ptr<Batch> NextBatch();
  void ReadAcks();
  absl::Status HandleAcks(const v1::AppendResponse& response);

  const std::shared_ptr<v1::RatioService::Stub> stub_;
  const v1::AppendHeader header_;
  const AppendOptions options_;
  const std::chrono::nanoseconds ack_timeout_;
  grpc::ClientContext context_;
  const std::unique_ptr<Stream> stream_;

  // Guards all that follows but the threads. Not absl::Mutex: the installed one hides its locks
  // from ThreadSanitizer.
  std::mutex mutex_;
  // Of callers: notified when something is acked, there is room in the queue, or the stream has
  // ended.
  std::condition_variable changed_;
  // Of the writer: notified when it is due.
  std::condition_variable work_;
  // Whether a thread writes to the stream: at first the writer, the header.
  bool writing_ = true;
  std::deque<Entry> queue_;
  size_t queued_bytes_ = 0;
  // Entries for which there was no room. While there are any, nothing else is sent.
  std::vector<Entry> exhausted_;
  Clock::time_point retry_time_ = Clock::time_point::min();
  std::deque<std::shared_ptr<Batch>> in_flight_;
  std::vector<RefusedEntry> refused_;
  // Whether the server has answered something, and so taken the header.
  bool answered_ = false;
  // Whether an empty batch is to be sent: its ack, or that there is none, tells about the header.
  bool tries_header_ = false;
  // Whether the caller knows that the stream is broken.
  bool told_ = false;
  bool closing_ = false;
  // When something was last sent or acked, or waiting for acks began.
  Clock::time_point last_progress_;
  bool overdue_ = false;
  bool reads_ended_ = false;
  bool ended_ = false;
  absl::Status status_;

  std::thread writer_;
  std::thread reader_;
};

}  // namespace sis
