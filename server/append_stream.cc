#include "server/append_stream.h"

#include <utility>

#include "server/grpc_status.h"

namespace sis {

AppendStream::AppendStream(RunRegistry& registry, Metrics& metrics, StoreThreads& store_threads)
    : registry_(registry), store_threads_(store_threads), timer_(metrics, "Append") {
  ReadNext();
}

void AppendStream::ReadNext() {
  arena_.Reset();
  auto* const request = google::protobuf::Arena::CreateMessage<v1::AppendRequest>(&arena_);
  request_ = request;
  order_.HandOn();
  StartRead(request);  // not of the member, which is the next reaction's from here on
}

absl::Status AppendStream::OpenIngest() {
  if (ingest_.has_value()) return absl::InvalidArgumentError("header: sent twice");
  absl::StatusOr<Ingest> ingest = Ingest::Open(registry_, request_->header());
  if (!ingest.ok()) return ingest.status();
  ingest_ = *std::move(ingest);
  return absl::OkStatus();
}

void AppendStream::OnReadDone(bool ok) {
  order_.Begin();
  if (!ok) return End(absl::OkStatus());  // the worker has closed its side
  order_.HandOn();
  store_threads_.Run([this] { HandleRequest(); });
}

void AppendStream::HandleRequest() {
  order_.Begin();
  switch (request_->message_case()) {
    case v1::AppendRequest::kHeader:
      if (absl::Status status = OpenIngest(); !status.ok()) return End(status);
      return ReadNext();
    case v1::AppendRequest::kBatch: {
      if (!ingest_.has_value()) {
        return End(absl::InvalidArgumentError("header: must come first"));
      }
      response_.Clear();
      if (ingest_->has_store()) ingest_->BringIn(request_->batch());
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
      ingest_->Apply(request_->batch(), turn, response_);
  if (!wanted.ok()) {
    End(wanted.status());
    return std::nullopt;
  }
  order_.HandOn();
  if (!wanted->has_value()) store_threads_.Run([this] { Answer(); });
  return *std::move(wanted);
}

void AppendStream::Answer() {
  order_.Begin();
  if (ingest_->has_store()) ingest_->Store(request_->batch(), response_);
  order_.HandOn();
  StartWrite(&response_);
}

void AppendStream::GiveUp(const absl::Status& status) {
  order_.Begin();
  End(status);
}

void AppendStream::OnCancel() { registry_.room_queue().Leave(*this); }

void AppendStream::OnWriteDone(bool ok) {
  order_.Begin();
  if (!ok) return End(absl::CancelledError("the worker is gone"));
  ReadNext();
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
