#include "server/rpc/fetch_stream.h"

#include <memory>
#include <utility>

#include "server/rpc/grpc_status.h"

namespace sis {
namespace {

constexpr char kMethod[] = "FetchTopK";

}  // namespace

FetchStream::FetchStream(grpc::CallbackServerContext& context, const Resources& resources,
                         const v1::FetchTopKRequest& request)
    : Stream(context, resources, kMethod), deadline_(context, resources.default_deadline) {
  Register();
  if (!caller_.ok()) {
    End(caller_.status());
    return;
  }
  order_.HandOn();
  resources.store_threads.Schedule("", [this, &request] {
    order_.Begin();
    if (absl::Status status = Open(request); !status.ok()) {
      End(status);
    } else {
      WriteNext();
    }
  });
}

absl::Status FetchStream::Open(const v1::FetchTopKRequest& request) {
  absl::StatusOr<std::shared_ptr<Run>> run = resources_.runs.Find(request.run(), *caller_);
  if (!run.ok()) return run.status();
  absl::StatusOr<Fetch> fetch = Fetch::Open(*std::move(run), request);
  if (!fetch.ok()) return fetch.status();
  fetch_ = *std::move(fetch);
  return absl::OkStatus();
}

void FetchStream::WriteNext() {
  if (absl::Status status = deadline_.Check(); !status.ok()) return End(status);
  if (fetch_->Next(response_)) {
    WriteBegins();
    order_.HandOn();
    StartWrite(&response_);
  } else {
    End(absl::OkStatus());
  }
}

void FetchStream::OnWriteDone(bool ok) {
  order_.Begin();
  WriteEnds();
  if (!ok) return End(absl::CancelledError("the trainer is gone"));
  WriteNext();
}

void FetchStream::End(const absl::Status& status) {
  code_ = status.code();
  fetch_.reset();  // releases its sequences, before the trainer can continue
  order_.HandOn();
  Finish(ToGrpcStatus(status, context_));
}

void FetchStream::OnDone() {
  order_.Begin();
  Unregister();
  timer_.Finish(code_);
  delete this;
}

}  // namespace sis
