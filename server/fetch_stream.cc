#include "server/fetch_stream.h"

#include <memory>
#include <utility>

#include "server/grpc_status.h"
#include "server/wire/received_message.h"
#include "server/wire/serialize.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

FetchStream::FetchStream(RunRegistry& registry, Metrics& metrics, StoreThreads& store_threads,
                         const grpc::ByteBuffer& request)
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

absl::Status FetchStream::Open(RunRegistry& registry, const grpc::ByteBuffer& request) {
  const auto received = ReceivedMessage<v1::FetchTopKRequest>::Parse(request);
  if (!received.ok()) return received.status();
  const v1::FetchTopKRequest& message = (*received)->message();
  absl::StatusOr<std::shared_ptr<Run>> run = registry.FindOrLearn(message.run());
  if (!run.ok()) return run.status();
  absl::StatusOr<Fetch> fetch = Fetch::Open(*std::move(run), message);
  if (!fetch.ok()) return fetch.status();
  fetch_ = *std::move(fetch);
  return absl::OkStatus();
}

void FetchStream::WriteNext() {
  if (auto message = std::make_shared<v1::FetchTopKResponse>(); fetch_->Next(*message)) {
    response_ = SerializeInPlace(std::move(message));
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
