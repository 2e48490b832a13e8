#include "server/append_stream.h"

#include <utility>

#include "server/grpc_status.h"

namespace sis {

AppendStream::AppendStream(RunRegistry& registry, Metrics& metrics)
    : registry_(registry), timer_(metrics, "Append") {
  order_.HandOn();
  StartRead(&request_);
}

absl::Status AppendStream::OpenIngest() {
  if (ingest_.has_value()) return absl::InvalidArgumentError("header: sent twice");
  absl::StatusOr<Ingest> ingest = Ingest::Open(registry_, request_.header());
  if (!ingest.ok()) return ingest.status();
  ingest_ = *std::move(ingest);
  return absl::OkStatus();
}

void AppendStream::OnReadDone(bool ok) {
  order_.Begin();
  if (!ok) return End(absl::OkStatus());  // the worker has closed its side
  switch (request_.message_case()) {
    case v1::AppendRequest::kHeader:
      if (absl::Status status = OpenIngest(); !status.ok()) return End(status);
      order_.HandOn();
      return StartRead(&request_);
    case v1::AppendRequest::kBatch: {
      if (!ingest_.has_value()) {
        return End(absl::InvalidArgumentError("header: must come first"));
      }
      response_.Clear();
      std::optional<RoomWanted> wanted = Resume(Turn::kArrived);
      if (!wanted.has_value()) return;
      absl::Status joined = registry_.room_queue().Join(*this, *std::move(wanted));
      if (!joined.ok()) End(joined);
      return;
    }
    case v1::AppendRequest::MESSAGE_NOT_SET:
      return End(absl::InvalidArgumentError("message: neither header nor batch"));
  }
}

std::optional<RoomWanted> AppendStream::Resume(Turn turn) {
  order_.Begin();
  absl::StatusOr<std::optional<RoomWanted>> wanted =
      ingest_->Apply(request_.batch(), turn, response_);
  if (!wanted.ok()) {
    End(wanted.status());
    return std::nullopt;
  }
  order_.HandOn();
  if (!wanted->has_value()) StartWrite(&response_);
  return *std::move(wanted);
}

void AppendStream::GiveUp(const absl::Status& status) {
  order_.Begin();
  End(status);
}

void AppendStream::OnCancel() { registry_.room_queue().Leave(*this); }

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
