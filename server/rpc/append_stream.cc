#include "server/rpc/append_stream.h"

#include <utility>

#include "server/rpc/grpc_status.h"
#include "server/wire/received_bytes.h"

namespace sis {
namespace {

constexpr char kMethod[] = "Append";

// What a stream keeps from message to message.
constexpr size_t kKeptAcks = 64;
constexpr size_t kKeptAnswerBytes = 4096;

template <typename Container>
void ClearButFor(size_t kept, Container& container) {
  container.clear();
  if (container.capacity() > kept) Container().swap(container);
}

absl::Status ShutsDown() { return absl::UnavailableError("the server shuts down"); }

}  // namespace

AppendStream::AppendStream(const grpc::CallbackServerContext& context, const Resources& resources)
    : Stream(context, resources, kMethod), charge_(resources.parsing) {
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
      StartRead(&received_);
      return;
    }
  }
  End(ShutsDown());
}

void AppendStream::Close() {
  {
    WriterLock lock(mutex_);
    closed_ = true;
    if (!std::exchange(reading_, false)) return;  // it ends when it would read
  }
  End(ShutsDown());
}

absl::Status AppendStream::Parse() {
  absl::StatusOr<ScatteredBytes> bytes = ReceivedBytes(received_, charge_);
  if (!bytes.ok()) return bytes.status();
  return request_.Parse(*std::move(bytes), charge_);
}

absl::Status AppendStream::OpenIngest() {
  if (ingest_.has_value()) return absl::InvalidArgumentError("header: sent twice");
  absl::StatusOr<Ingest> ingest = Ingest::Open(resources_.runs, request_.header(), *caller_);
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
  if (!ok) return End(absl::OkStatus());  // the worker has closed its side
  order_.HandOn();
  resources_.store_threads.Run([this] { HandleRequest(); });
}

void AppendStream::HandleRequest() {
  order_.Begin();
  if (absl::Status status = Parse(); !status.ok()) return End(status);
  if (request_.is_header()) {
    if (absl::Status status = OpenIngest(); !status.ok()) return End(status);
    Clear();
    return ReadNext();
  }
  if (!request_.is_batch()) {
    return End(absl::InvalidArgumentError("message: neither header nor batch"));
  }
  if (!ingest_.has_value()) return End(absl::InvalidArgumentError("header: must come first"));
  acks_.clear();
  if (!charge_.Take(ingest_->BytesToCopy(request_.entries()))) return End(charge_.Refusal());
  if (ingest_->has_store()) ingest_->BringIn(request_.entries());
  if (absl::Status applied = ingest_->Apply(request_.entries(), acks_); !applied.ok()) {
    return End(applied);
  }
  Answer();
}

void AppendStream::Answer() {
  if (ingest_->has_store()) ingest_->Store(request_.entries(), acks_);
  ingest_->Rest();
  WriteAppendResponse(request_.entries(), acks_, answer_);
  const grpc::Slice slice(answer_);
  written_ = grpc::ByteBuffer(&slice, 1);
  WriteBegins();
  order_.HandOn();
  StartWrite(&written_);
}

void AppendStream::OnWriteDone(bool ok) {
  order_.Begin();
  WriteEnds();
  if (!ok) return End(absl::CancelledError("the worker is gone"));
  Clear();
  ReadNext();
}

void AppendStream::Clear() {
  request_.Clear();
  ClearButFor(kKeptAcks, acks_);
  ClearButFor(kKeptAnswerBytes, answer_);
  written_.Clear();
  received_.Clear();
  charge_.GiveBack();
}

void AppendStream::End(const absl::Status& status) {
  code_ = status.code();
  order_.HandOn();
  Finish(ToGrpcStatus(status));
}

void AppendStream::OnDone() {
  order_.Begin();
  Unregister();
  timer_.Finish(code_);
  delete this;
}

}  // namespace sis
