#include "server/rpc/evaluate_stream.h"

#include <utility>

#include "server/rpc/call_deadline.h"
#include "server/rpc/evaluate_task.h"
#include "server/rpc/grpc_status.h"

namespace sis {
namespace {

constexpr char kMethod[] = "EvaluateStream";

}  // namespace

EvaluateStream* EvaluateStream::Start(const grpc::CallbackServerContext& context,
                                      const Resources& resources) {
  const std::shared_ptr<EvaluateStream> stream(new EvaluateStream(context, resources));
  stream->Register();
  WriterLock lock(stream->mutex_);
  stream->self_ = stream;
  if (stream->caller_.ok()) {
    stream->Advance();
  } else if (!stream->ended_) {
    stream->End(stream->caller_.status());
  }
  return stream.get();
}

EvaluateStream::EvaluateStream(const grpc::CallbackServerContext& context,
                               const Resources& resources)
    : Stream(context, resources, kMethod) {}

void EvaluateStream::Close() {
  WriterLock lock(mutex_);
  closed_ = true;
  Advance();
}

void EvaluateStream::OnReadDone(bool ok) {
  std::shared_ptr<Request> request;
  grpc::ByteBuffer received;
  RequestSpan span;
  {
    WriterLock lock(mutex_);
    reading_ = false;
    if (!ok) {
      reads_ended_ = true;  // the trainer has closed its side
      Advance();
      return;
    }
    received.Swap(&received_);
    span = trace_.Begin(kMethod);
    request = std::make_shared<Request>(Request{.bytes = received.Length(), .answer = {}});
    unanswered_.push_back(request);
    unanswered_bytes_ += request->bytes;
    Advance();
  }
  EvaluateTask::Start(
      resources_, *caller_, client_, received,
      [self = shared_from_this(), deadline = CallDeadline(context_, resources_.default_deadline)] {
        return self->stopped_ ? absl::CancelledError("the trainer is gone") : deadline.Check();
      },
      [self = shared_from_this(), request, span](absl::StatusOr<grpc::ByteBuffer> answer) mutable {
        span.End(answer.status().code());
        self->OnAnswer(*request, std::move(answer));
      },
      span);
}

void EvaluateStream::OnAnswer(Request& request, absl::StatusOr<grpc::ByteBuffer> answer) {
  WriterLock lock(mutex_);
  request.answer = std::move(answer);
  Advance();
}

void EvaluateStream::OnWriteDone(bool ok) {
  WriterLock lock(mutex_);
  WriteEnds();
  writing_ = false;
  unanswered_bytes_ -= unanswered_.front()->bytes;
  unanswered_.pop_front();
  if (!ok) stopped_ = true;
  Advance();
}

void EvaluateStream::OnCancel() {
  WriterLock lock(mutex_);
  stopped_ = true;
  Advance();
}

void EvaluateStream::Advance() {
  if (ended_) return;
  if (!writing_) {
    if (stopped_) return End(absl::CancelledError("the trainer is gone"));
    if (unanswered_.empty()) {
      if (reads_ended_) return End(absl::OkStatus());
      if (closed_) return End(absl::UnavailableError("the server shuts down"));
    }
    if (!unanswered_.empty() && unanswered_.front()->answer.has_value()) {
      const absl::StatusOr<grpc::ByteBuffer>& answer = *unanswered_.front()->answer;
      if (!answer.ok()) return End(answer.status());
      writing_ = true;
      WriteBegins();
      StartWrite(&*answer);
    }
  }
  if (!reading_ && !reads_ended_ && !stopped_ && !closed_ && unanswered_.size() < kMaxRequests &&
      unanswered_bytes_ < kMaxBytes) {
    reading_ = true;
    StartRead(&received_);
  }
}

void EvaluateStream::End(const absl::Status& status) {
  ended_ = true;
  stopped_ = true;
  code_ = status.code();
  Finish(ToGrpcStatus(status));
}

void EvaluateStream::OnDone() {
  std::shared_ptr<EvaluateStream> self;
  {
    WriterLock lock(mutex_);
    timer_.Finish(code_);
    self = std::move(self_);
  }
  // Not under the lock, which comes after that of the open streams.
  Unregister();
}

}  // namespace sis
