#include "server/fetch_stream.h"

#include <utility>

#include "server/grpc_status.h"

namespace sis {

FetchStream::FetchStream(RunRegistry& registry, Metrics& metrics, StoreThreads& store_threads,
                         const v1::FetchTopKRequest& request)
    : timer_(metrics, "FetchTopK") {
  order_.HandOn();
  store_threads.Run([this, &registry, &request] {
    order_.Begin();
    if (absl::Status status = Open(registry, request); !status.ok()) {
      End(status);
    } else {
      WriteNext();
    }
  });
}

absl::Status FetchStream::Open(RunRegistry& registry, const v1::FetchTopKRequest& request) {
  absl::StatusOr<std::shared_ptr<Run>> run = registry.FindOrLearn(request.run());
  if (!run.ok()) return run.status();
  absl::StatusOr<Fetch> fetch = Fetch::Open(*std::move(run), request);
  if (!fetch.ok()) return fetch.status();
  fetch_ = *std::move(fetch);
  return absl::OkStatus();
}

void FetchStream::WriteNext() {
  if (fetch_->Next(response_)) {
    order_.HandOn();
    StartWrite(&response_);
  } else {
    End(absl::OkStatus());
  }
}

void FetchStream::OnWriteDone(bool ok) {
  order_.Begin();
  if (!ok) return End(absl::CancelledError("the trainer is gone"));
  WriteNext();
}

void FetchStream::End(const absl::Status& status) {
  code_ = status.code();
  order_.HandOn();
  Finish(ToGrpcStatus(status));
}

void FetchStream::OnDone() {
  order_.Begin();
  timer_.Finish(code_);
  delete this;
}

}  // namespace sis
