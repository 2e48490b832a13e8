#include "server/rpc/append_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/rpc/grpc_status.h"

namespace sis {
namespace {

constexpr char kMethod[] = "Append";

// Maximum number of entries in a batch. The acks of more could be many times as large as the batch.
constexpr int kMaxEntries = 1 << 16;
// Number of acks whose memory a stream keeps between messages.
constexpr size_t kKeptAcks = 64;

}  // namespace

AppendStream::AppendStream(grpc::CallbackServerContext& context, const Resources& resources)
    : Stream(context, resources, kMethod) {
  Clear();
  Register();
  if (caller_.ok()) {
    ReadNext();
  } else {
    End(caller_.status());
  }
}

void AppendStream::ReadNext() {
  {
    WriterLock lock(mutex_);
    if (!closed_) {
      reading_ = true;
      order_.HandOn();
      StartRead(request_);
      return;
    }
  }
  End(ShutsDown());
}

void AppendStream::Close() {
  {
    WriterLock lock(mutex_);
    closed_ = true;
    if (!std::exchange(reading_, false)) return;  // otherwise the stream ends at its next read
  }
  End(ShutsDown());
}

absl::Status AppendStream::OpenIngest() {
  if (ingest_.has_value()) return absl::InvalidArgumentError("header: sent twice");
  absl::StatusOr<Ingest> ingest = Ingest::Open(resources_.runs, request_->header(), *caller_);
  if (!ingest.ok()) return ingest.status();
  ingest_ = *std::move(ingest);
  return absl::OkStatus();
}

void AppendStream::OnReadDone(bool ok) {
  order_.Begin();
  {
    WriterLock lock(mutex_);
    if (!std::exchange(reading_, false)) return;  // closed
  }
  if (!ok) {
    // The worker has closed its side, or protobuf failed to parse the message.
    const bool closed = request_->message_case() == v1::AppendRequest::MESSAGE_NOT_SET;
    return End(closed ? absl::OkStatus()
                      : absl::InvalidArgumentError("message: not an AppendRequest"));
  }
  order_.HandOn();
  resources_.store_threads.Schedule("", [this] { HandleRequest(); });
}

void AppendStream::HandleRequest() {
  order_.Begin();
  if (request_->has_header()) {
    if (absl::Status status = OpenIngest(); !status.ok()) return End(status);
    Clear();
    return ReadNext();
  }
  if (absl::Status status = HandleBatch(); !status.ok()) return End(status);
  WriteBegins();
  order_.HandOn();
  StartWrite(response_);
}

absl::Status AppendStream::HandleBatch() {
  if (!request_->has_batch()) {
    return absl::InvalidArgumentError("message: neither header nor batch");
  }
  if (!ingest_.has_value()) return absl::InvalidArgumentError("header: must come first");
  const v1::AppendBatch& batch = request_->batch();
  if (batch.entries_size() > kMaxEntries) {
    return absl::InvalidArgumentError(absl::StrCat(
        "batch.entries: too many, got ", batch.entries_size(), "; must be at most ", kMaxEntries));
  }
  if (ingest_->has_store()) ingest_->BringIn(batch);
  if (absl::Status status = ingest_->Apply(batch, acks_); !status.ok()) return status;
  if (ingest_->has_store()) ingest_->Store(batch, acks_);
  AddAcks(batch, acks_, *response_);
  return absl::OkStatus();
}

void AppendStream::OnWriteDone(bool ok) {
  order_.Begin();
  WriteEnds();
  if (!ok) return End(absl::CancelledError("the worker is gone"));
  Clear();
  ReadNext();
}

void AppendStream::Clear() {
  arena_.Reset();
  request_ = google::protobuf::Arena::CreateMessage<v1::AppendRequest>(&arena_);
  response_ = google::protobuf::Arena::CreateMessage<v1::AppendResponse>(&arena_);
  acks_.clear();
  if (acks_.capacity() > kKeptAcks) std::vector<EntryAck>().swap(acks_);
}

void AppendStream::End(const absl::Status& status) {
  code_ = status.code();
  order_.HandOn();
  Finish(ToGrpcStatus(status, context_));
}

void AppendStream::OnDone() {
  order_.Begin();
  Unregister();
  timer_.Finish(code_);
  delete this;
}

}  // namespace sis
