#include "client/one_server/server_append_writer.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/types/grpc_status.h"
#include "client/types/messages.h"

namespace sis {
namespace {

// What a clock can add to now.
constexpr absl::Duration kForever = absl::Hours(1 << 16);

// Between two looks at the time of a writer that has nothing to do.
constexpr std::chrono::nanoseconds kShortestLook = std::chrono::milliseconds(10);

// That the server takes in a batch, however few bytes they have.
constexpr size_t kMostEntries = size_t{1} << 16;

// What a caller writes itself. Less than what gRPC lets a stream send ahead of its reader, so that
// the write takes no longer than the system call.
constexpr size_t kMostBytesOfCaller = 16 << 10;

// The server's wish, within what a client can sensibly do.
// Doubles with each of the first refusals.
std::chrono::nanoseconds RetryDelay(double seconds, int refusals) {
  constexpr int kMostDoublings = 3;
  constexpr double kShortest = 0.001;
  constexpr double kLongest = 60;
  return absl::ToChronoNanoseconds(
      absl::Seconds(seconds >= kShortest ? std::min(seconds, kLongest) : kShortest) *
      (1 << std::min(refusals, kMostDoublings)));
}

}  // namespace

ServerAppendWriter::ServerAppendWriter(std::shared_ptr<v1::RatioService::Stub> stub,
                                       v1::AppendHeader header, const AppendOptions& options)
    : AppendWriter(options),
      stub_(std::move(stub)),
      header_(std::move(header)),
      options_(options),
      ack_timeout_(absl::ToChronoNanoseconds(std::min(options.ack_timeout, kForever))),
      stream_(OpenStream()),
      writer_([this] { WriteBatches(); }),
      reader_([this] { ReadAcks(); }) {}

std::unique_ptr<ServerAppendWriter::Stream> ServerAppendWriter::OpenStream() {
  // Leave together with the header: else the caller waits here for the connection, without a limit.
  context_.set_initial_metadata_corked(true);
  return stub_->Append(&context_);
}

ServerAppendWriter::~ServerAppendWriter() {
  context_.TryCancel();
  reader_.join();
  const std::lock_guard lock(mutex_);
  if (told_) return;
  size_t entries = queue_.size() + exhausted_.size() + refused_.size();
  for (const std::shared_ptr<Batch>& batch : in_flight_) entries += batch->entries.size();
  WarnOfUnflushed(entries);
}

absl::StatusOr<std::vector<RefusedEntry>> ServerAppendWriter::Flush() {
  std::unique_lock lock(mutex_);
  if (!answered_ && !ended_ && Idle()) {
    tries_header_ = true;
    last_progress_ = Clock::now();
  }
  WaitFor(lock, [this] { return ended_ || Idle(); });
  return TakeRefused();
}

absl::StatusOr<std::vector<RefusedEntry>> ServerAppendWriter::Finish() {
  std::unique_lock lock(mutex_);
  closing_ = true;
  last_progress_ = Clock::now();
  changed_.notify_all();
  WaitFor(lock, [this] { return ended_; });
  return TakeRefused();
}

std::vector<RefusedEntry> ServerAppendWriter::GiveUp() {
  const std::lock_guard lock(mutex_);
  std::vector<RefusedEntry> refused = std::exchange(refused_, {});
  const auto refuse = [&](const v1::AppendEntry& entry) {
    refused.push_back({FromMessage(SequenceOf(entry)), status_});
  };
  for (const std::shared_ptr<Batch>& batch : std::exchange(in_flight_, {})) {
    for (const v1::AppendEntry& entry : batch->request.batch().entries()) refuse(entry);
  }
  for (const Entry& entry : std::exchange(exhausted_, {})) refuse(entry.message);
  for (const Entry& entry : std::exchange(queue_, {})) refuse(entry.message);
  return refused;
}

absl::Status ServerAppendWriter::Put(std::vector<OutgoingEntry>& entries) {
  std::unique_lock lock(mutex_);
  absl::Status status;
  auto entry = entries.begin();
  while (entry != entries.end() && (status = Queue(lock, *entry)).ok()) ++entry;
  entries.erase(entries.begin(), entry);
  if (CallerWrites()) {
    const std::shared_ptr<Batch> batch = TakeBatch();
    lock.unlock();
    // Whether it fails the reader hears too.
    stream_->Write(batch->request);
    lock.lock();
    writing_ = false;
  }
  WakeWriter();
  return status;
}

absl::Status ServerAppendWriter::Queue(std::unique_lock<std::mutex>& lock, OutgoingEntry& entry) {
  WaitFor(lock, [&] {
    if (ended_ || closing_) return true;
    return queued_bytes_ < options_.batch_bytes;
  });
  if (ended_ && !status_.ok()) {
    told_ = true;
    return status_;
  }
  if (ended_ || closing_) return absl::FailedPreconditionError("the append stream is finished");
  if (Idle()) last_progress_ = Clock::now();
  queued_bytes_ += entry.bytes();
  queue_.push_back({std::move(entry)});
  return absl::OkStatus();
}

template <typename Condition>
void ServerAppendWriter::WaitFor(std::unique_lock<std::mutex>& lock, Condition condition) {
  while (!condition()) {
    WakeWriter();
    // What waits for room has limits of its own.
    const bool waits_for_server = !overdue_ && (!in_flight_.empty() || exhausted_.empty());
    if (!waits_for_server) {
      changed_.wait(lock);
    } else if (Clock::now() >= last_progress_ + ack_timeout_) {
      overdue_ = true;
      context_.TryCancel();
    } else {
      changed_.wait_until(lock, last_progress_ + ack_timeout_);
    }
  }
}

bool ServerAppendWriter::WriterIsDue() const {
  if (writing_) return false;
  if (reads_ended_ || !exhausted_.empty() || tries_header_ || (closing_ && Idle())) return true;
  return !queue_.empty() && in_flight_.size() < options_.max_batches_in_flight &&
         (in_flight_.empty() || queued_bytes_ >= options_.batch_bytes);
}

bool ServerAppendWriter::CallerWrites() const {
  return !writing_ && !reads_ended_ && answered_ && exhausted_.empty() && in_flight_.empty() &&
         !queue_.empty() && queued_bytes_ <= kMostBytesOfCaller;
}

void ServerAppendWriter::WakeWriter() {
  if (WriterIsDue()) work_.notify_one();
}

bool ServerAppendWriter::Idle() const {
  return queue_.empty() && exhausted_.empty() && in_flight_.empty() && !tries_header_;
}

absl::StatusOr<std::vector<RefusedEntry>> ServerAppendWriter::TakeRefused() {
  if (!status_.ok()) {
    told_ = true;
    return status_;
  }
  return std::exchange(refused_, {});
}

void ServerAppendWriter::WriteBatches() {
  v1::AppendRequest header;
  *header.mutable_header() = header_;
  if (!stream_->Write(header)) return;
  while (const std::shared_ptr<Batch> batch = NextBatch()) {
    if (!stream_->Write(batch->request)) return;
  }
  stream_->WritesDone();
}

std::shared_ptr<ServerAppendWriter::Batch> ServerAppendWriter::NextBatch() {
  std::unique_lock lock(mutex_);
  writing_ = false;
  for (;;) {
    while (!WriterIsDue()) {
      // A caller that writes can't look at the time itself. Not without a pause: it may be short.
      if (work_.wait_for(lock, std::max(ack_timeout_, kShortestLook)) == std::cv_status::timeout &&
          writing_ && Clock::now() >= last_progress_ + ack_timeout_) {
        overdue_ = true;
        context_.TryCancel();
      }
    }
    if (reads_ended_) return nullptr;
    if (exhausted_.empty()) break;
    // More acks that find no room may move the time while we wait.
    const Clock::time_point retry_time = retry_time_;
    if (work_.wait_until(lock, retry_time, [this] { return reads_ended_; })) return nullptr;
    if (Clock::now() < retry_time_) continue;
    for (const Entry& entry : exhausted_) queued_bytes_ += entry.bytes();
    queue_.insert(queue_.begin(), std::make_move_iterator(exhausted_.begin()),
                  std::make_move_iterator(exhausted_.end()));
    exhausted_.clear();
    changed_.notify_all();  // callers watch the time again
  }
  if (queue_.empty() && !tries_header_) return nullptr;
  return TakeBatch();
}

std::shared_ptr<ServerAppendWriter::Batch> ServerAppendWriter::TakeBatch() {
  writing_ = true;
  // Callers wait for room in the queue.
  const bool callers_wait = queued_bytes_ >= options_.batch_bytes;
  auto batch = std::make_shared<Batch>();
  batch->request.mutable_batch();
  tries_header_ = false;
  last_progress_ = Clock::now();
  size_t bytes = 0;
  while (!queue_.empty() && bytes < options_.batch_bytes && batch->entries.size() < kMostEntries) {
    Entry& entry = queue_.front();
    bytes += entry.bytes();
    *batch->request.mutable_batch()->add_entries() = std::move(entry.message);
    batch->entries.push_back(std::move(entry));
    queue_.pop_front();
  }
  queued_bytes_ -= bytes;
  in_flight_.push_back(batch);
  if (callers_wait) changed_.notify_all();
  return batch;
}

void ServerAppendWriter::ReadAcks() {
  absl::Status protocol;
  v1::AppendResponse response;
  while (protocol.ok() && stream_->Read(&response)) {
    protocol = HandleAcks(response);
    changed_.notify_all();
  }
  if (!protocol.ok()) {
    context_.TryCancel();
    while (stream_->Read(&response)) {
    }
  }
  {
    const std::lock_guard lock(mutex_);
    reads_ended_ = true;
    WakeWriter();
  }
  writer_.join();
  absl::Status status = ToAbslStatus(stream_->Finish());
  const std::lock_guard lock(mutex_);
  if (!protocol.ok()) status = protocol;
  if (overdue_) {
    status = absl::DeadlineExceededError(
        absl::StrCat("no ack within ", absl::FormatDuration(options_.ack_timeout)));
  }
  if (status.ok() && !(closing_ && Idle())) {
    status = absl::UnavailableError("the server ended the append stream before it was finished");
  }
  status_ = std::move(status);
  ended_ = true;
  changed_.notify_all();
}

absl::Status ServerAppendWriter::HandleAcks(const v1::AppendResponse& response) {
  const std::lock_guard lock(mutex_);
  if (in_flight_.empty()) return absl::InternalError("the server acked a batch that was not sent");
  const std::shared_ptr<Batch> batch = in_flight_.front();
  const auto& entries = batch->request.batch().entries();
  if (response.acks_size() != entries.size()) {
    return absl::InternalError(absl::StrCat("the server sent ", response.acks_size(),
                                            " acks for a batch of ", entries.size(), " entries"));
  }
  in_flight_.pop_front();
  answered_ = true;
  const Clock::time_point now = Clock::now();
  last_progress_ = now;
  for (int i = 0; i < entries.size(); ++i) {
    const v1::Ack& ack = response.acks(i);
    if (ack.code() == 0) continue;
    const auto code = static_cast<absl::StatusCode>(ack.code());
    Entry& entry = batch->entries[i];
    entry.first_exhausted = std::min(now, entry.first_exhausted);
    if (code == absl::StatusCode::kResourceExhausted && entries[i].has_block() &&
        absl::FromChrono(now - entry.first_exhausted) < options_.retry_limit) {
      retry_time_ = std::max(retry_time_, now + RetryDelay(ack.retry_seconds(), entry.refusals++));
      entry.message = entries[i];
      exhausted_.push_back(std::move(entry));
    } else {
      refused_.push_back({FromMessage(SequenceOf(entries[i])), absl::Status(code, ack.message())});
    }
  }
  WakeWriter();
  return absl::OkStatus();
}

}  // namespace sis
