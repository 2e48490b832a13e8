#include "server/append_stream.h"

#include <utility>

#include "server/grpc_status.h"
#include "server/wire/serialize.h"

namespace sis {

AppendStream::AppendStream(RunRegistry& registry, Metrics& metrics)
    : registry_(registry), timer_(metrics, "Append") {
  Read();
}

void AppendStream::Read() {
  request_.reset();
  received_.Clear();
  order_.HandOn();
  StartRead(&received_);
}

absl::Status AppendStream::OpenIngest() {
  if (ingest_.has_value()) return absl::InvalidArgumentError("header: sent twice");
  absl::StatusOr<Ingest> ingest = Ingest::Open(registry_, request_->message().header());
  if (!ingest.ok()) return ingest.status();
  ingest_ = *std::move(ingest);
  return absl::OkStatus();
}

void AppendStream::OnReadDone(bool ok) {
  order_.Begin();
  if (!ok) return End(absl::OkStatus());  // the worker has closed its side
  absl::StatusOr<std::unique_ptr<const ReceivedMessage<v1::AppendRequest>>> request =
      ReceivedMessage<v1::AppendRequest>::Parse(received_);
  if (!request.ok()) return End(request.status());
  request_ = *std::move(request);
  switch (request_->message().message_case()) {
    case v1::AppendRequest::kHeader:
      if (absl::Status status = OpenIngest(); !status.ok()) return End(status);
      return Read();
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
      ingest_->Apply(request_->message().batch(), turn, response_, request_->arrays());
  if (!wanted.ok()) {
    End(wanted.status());
    return std::nullopt;
  }
  if (!wanted->has_value()) {
    written_ = SerializeInPlace(std::make_shared<v1::AppendResponse>(std::move(response_)));
  }
  order_.HandOn();
  if (!wanted->has_value()) StartWrite(&written_);
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
  Read();
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
