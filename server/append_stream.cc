#include "server/append_stream.h"

#include <utility>

#include "server/grpc_status.h"

namespace sis {

AppendStream::AppendStream(RunRegistry& registry, Metrics& metrics, StoreThreads& store_threads)
    : registry_(registry), store_threads_(store_threads), timer_(metrics, "Append") {
  order_.HandOn();
  StartRead(&request_);
}

absl::Status AppendStream::Handle() {
  switch (request_.message_case()) {
    case v1::AppendRequest::kHeader: {
      if (ingest_.has_value()) return absl::InvalidArgumentError("header: sent twice");
      absl::StatusOr<Ingest> ingest = Ingest::Open(registry_, request_.header());
      if (!ingest.ok()) return ingest.status();
      ingest_ = *std::move(ingest);
      order_.HandOn();
      StartRead(&request_);
      return absl::OkStatus();
    }
    case v1::AppendRequest::kBatch: {
      if (!ingest_.has_value()) return absl::InvalidArgumentError("header: must come first");
      if (ingest_->has_store()) ingest_->BringIn(request_.batch());
      absl::StatusOr<v1::AppendResponse> response = ingest_->Apply(request_.batch());
      if (!response.ok()) return response.status();
      if (ingest_->has_store()) ingest_->Store(*response);
      response_ = *std::move(response);
      order_.HandOn();
      StartWrite(&response_);
      return absl::OkStatus();
    }
    case v1::AppendRequest::MESSAGE_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("message: neither header nor batch");
}

void AppendStream::OnReadDone(bool ok) {
  order_.Begin();
  if (!ok) return End(absl::OkStatus());  // the worker has closed its side
  order_.HandOn();
  store_threads_.Run([this] { HandleRequest(); });
}

void AppendStream::HandleRequest() {
  order_.Begin();
  if (absl::Status status = Handle(); !status.ok()) End(status);
}

void AppendStream::OnWriteDone(bool ok) {
  order_.Begin();
  if (!ok) return End(absl::CancelledError("the worker is gone"));
  order_.HandOn();
  StartRead(&request_);
}

void AppendStream::End(const absl::Status& status) {
  code_ = status.code();
  order_.HandOn();
  Finish(ToGrpcStatus(status));
}

void AppendStream::OnDone() {
  order_.Begin();
  timer_.Finish(code_);
  delete this;
}

}  // namespace sis
