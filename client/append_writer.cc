#include "client/append_writer.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/grpc_status.h"
#include "client/wire.h"
#include "kernels/crc32c.h"

namespace sis {
namespace {

// The server's wish, within what a client can sensibly do.
std::chrono::nanoseconds RetryDelay(double seconds) {
  constexpr double kShortest = 0.001;
  constexpr double kLongest = 60;
  return absl::ToChronoNanoseconds(
      absl::Seconds(seconds >= kShortest ? std::min(seconds, kLongest) : kShortest));
}

uint32_t BlockCrc32c(const RecordView& records) {
  uint32_t crc = ExtendCrc32c(0, std::as_bytes(records.sampled_ids));
  crc = ExtendCrc32c(crc, std::as_bytes(records.sampled_log_probs));
  crc = ExtendCrc32c(crc, std::as_bytes(records.ids));
  return ExtendCrc32c(crc, std::as_bytes(records.log_probs));
}

const v1::SequenceRef& SequenceOf(const v1::AppendEntry& entry) {
  if (entry.has_truncate()) return entry.truncate().sequence();
  if (entry.has_seal()) return entry.seal().sequence();
  return entry.block().sequence();
}

}  // namespace

AppendWriter::AppendWriter(std::shared_ptr<v1::RatioService::Stub> stub, v1::AppendHeader header,
                           const AppendOptions& options)
    : stub_(std::move(stub)),
      header_(std::move(header)),
      options_(options),
      stream_(stub_->Append(&context_)),
      writer_([this] { WriteBatches(); }),
      reader_([this] { ReadAcks(); }) {}

AppendWriter::~AppendWriter() {
  context_.TryCancel();
  reader_.join();
}

absl::Status AppendWriter::Block(const SequenceRef& sequence, uint32_t first_position,
                                 uint64_t policy_version, const RecordView& records) {
  v1::AppendEntry entry;
  v1::Block& block = *entry.mutable_block();
  ToMessage(sequence, *block.mutable_sequence());
  block.set_first_position(first_position);
  block.set_policy_version(policy_version);
  block.set_sampled_ids(ToBytes(records.sampled_ids));
  block.set_sampled_log_probs(ToBytes(records.sampled_log_probs));
  block.set_top_k_ids(ToBytes(records.ids));
  block.set_top_k_log_probs(ToBytes(records.log_probs));
  block.set_crc32c(BlockCrc32c(records));
  return Enqueue(std::move(entry));
}

absl::Status AppendWriter::Truncate(const SequenceRef& sequence, uint32_t length) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ended_ || Idle(); });
  }
  v1::AppendEntry entry;
  ToMessage(sequence, *entry.mutable_truncate()->mutable_sequence());
  entry.mutable_truncate()->set_length(length);
  return Enqueue(std::move(entry));
}

absl::Status AppendWriter::Seal(const SequenceRef& sequence, uint32_t length) {
  v1::AppendEntry entry;
  ToMessage(sequence, *entry.mutable_seal()->mutable_sequence());
  entry.mutable_seal()->set_length(length);
  return Enqueue(std::move(entry));
}

absl::StatusOr<std::vector<RefusedEntry>> AppendWriter::Flush() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ended_ || Idle(); });
  return TakeRefused();
}

absl::StatusOr<std::vector<RefusedEntry>> AppendWriter::Finish() {
  std::unique_lock lock(mutex_);
  closing_ = true;
  changed_.notify_all();
  changed_.wait(lock, [this] { return ended_; });
  return TakeRefused();
}

absl::Status AppendWriter::Enqueue(v1::AppendEntry message) {
  const size_t bytes = message.ByteSizeLong();
  std::unique_lock lock(mutex_);
  changed_.wait(lock,
                [this] { return ended_ || closing_ || queued_bytes_ < options_.batch_bytes; });
  if (ended_ && !status_.ok()) return status_;
  if (ended_ || closing_) return absl::FailedPreconditionError("the append stream is finished");
  queue_.push_back({std::move(message)});
  queued_bytes_ += bytes;
  changed_.notify_all();
  return absl::OkStatus();
}

bool AppendWriter::Idle() const {
  return queue_.empty() && exhausted_.empty() && in_flight_.empty();
}

absl::StatusOr<std::vector<RefusedEntry>> AppendWriter::TakeRefused() {
  if (!status_.ok()) return status_;
  return std::exchange(refused_, {});
}

void AppendWriter::WriteBatches() {
  v1::AppendRequest header;
  *header.mutable_header() = header_;
  if (!stream_->Write(header)) return;
  while (const std::shared_ptr<Batch> batch = NextBatch()) {
    if (!stream_->Write(batch->request)) return;
  }
  stream_->WritesDone();
}

std::shared_ptr<AppendWriter::Batch> AppendWriter::NextBatch() {
  std::unique_lock lock(mutex_);
  const auto due = [this] {
    if (reads_ended_ || !exhausted_.empty() || (closing_ && Idle())) return true;
    return !queue_.empty() && in_flight_.size() < options_.max_batches_in_flight &&
           (in_flight_.empty() || queued_bytes_ >= options_.batch_bytes);
  };
  for (;;) {
    changed_.wait(lock, due);
    if (reads_ended_) return nullptr;
    if (exhausted_.empty()) break;
    // More acks that find no room may move the time while we wait.
    const Clock::time_point retry_time = retry_time_;
    if (changed_.wait_until(lock, retry_time, [this] { return reads_ended_; })) return nullptr;
    if (Clock::now() < retry_time_) continue;
    for (const Entry& entry : exhausted_) queued_bytes_ += entry.message.ByteSizeLong();
    queue_.insert(queue_.begin(), std::make_move_iterator(exhausted_.begin()),
                  std::make_move_iterator(exhausted_.end()));
    exhausted_.clear();
  }
  if (queue_.empty()) return nullptr;

  auto batch = std::make_shared<Batch>();
  size_t bytes = 0;
  while (!queue_.empty() && bytes < options_.batch_bytes) {
    Entry& entry = queue_.front();
    bytes += entry.message.ByteSizeLong();
    batch->first_exhausted.push_back(entry.first_exhausted);
    *batch->request.mutable_batch()->add_entries() = std::move(entry.message);
    queue_.pop_front();
  }
  queued_bytes_ -= bytes;
  in_flight_.push_back(batch);
  changed_.notify_all();
  return batch;
}

void AppendWriter::ReadAcks() {
  absl::Status protocol;
  v1::AppendResponse response;
  while (protocol.ok() && stream_->Read(&response)) protocol = HandleAcks(response);
  if (!protocol.ok()) {
    context_.TryCancel();
    while (stream_->Read(&response)) {
    }
  }
  {
    const std::lock_guard lock(mutex_);
    reads_ended_ = true;
    changed_.notify_all();
  }
  writer_.join();
  absl::Status status = ToAbslStatus(stream_->Finish());
  const std::lock_guard lock(mutex_);
  if (!protocol.ok()) status = protocol;
  if (status.ok() && !(closing_ && Idle())) {
    status = absl::UnavailableError("the server ended the append stream before it was finished");
  }
  status_ = std::move(status);
  ended_ = true;
  changed_.notify_all();
}

absl::Status AppendWriter::HandleAcks(const v1::AppendResponse& response) {
  const std::lock_guard lock(mutex_);
  if (in_flight_.empty()) return absl::InternalError("the server acked a batch that was not sent");
  const std::shared_ptr<Batch> batch = in_flight_.front();
  const auto& entries = batch->request.batch().entries();
  if (response.acks_size() != entries.size()) {
    return absl::InternalError(absl::StrCat("the server sent ", response.acks_size(),
                                            " acks for a batch of ", entries.size(), " entries"));
  }
  in_flight_.pop_front();
  changed_.notify_all();
  const Clock::time_point now = Clock::now();
  for (int i = 0; i < entries.size(); ++i) {
    const v1::Ack& ack = response.acks(i);
    if (ack.code() == 0) continue;
    const auto code = static_cast<absl::StatusCode>(ack.code());
    const Clock::time_point first_exhausted = std::min(now, batch->first_exhausted[i]);
    if (code == absl::StatusCode::kResourceExhausted && entries[i].has_block() &&
        absl::FromChrono(now - first_exhausted) < options_.retry_limit) {
      retry_time_ = std::max(retry_time_, now + RetryDelay(ack.retry_seconds()));
      exhausted_.push_back({entries[i], first_exhausted});
    } else {
      refused_.push_back({FromMessage(SequenceOf(entries[i])), absl::Status(code, ack.message())});
    }
  }
  return absl::OkStatus();
}

}  // namespace sis
