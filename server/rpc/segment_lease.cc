#include "server/rpc/segment_lease.h"

#include <utility>

#include "server/rpc/grpc_status.h"
#include "server/wire/received_message.h"
#include "server/wire/serialize.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {
namespace {

// No run has this name.
constexpr char kLeases[] = "";

}  // namespace

SegmentLease* SegmentLease::Start(const grpc::CallbackServerContext& context,
                                  const Resources& resources, const grpc::ByteBuffer& request) {
  const std::shared_ptr<SegmentLease> lease(new SegmentLease(context, resources));
  lease->Register();
  const absl::StatusOr<uint64_t> bytes = lease->BytesWanted(request);
  {
    WriterLock lock(lease->mutex_);
    lease->self_ = lease;
    if (!bytes.ok()) lease->EndLocked(bytes.status());
    if (lease->ended_) return lease.get();
  }
  resources.workers.Schedule(kLeases, [lease, bytes = *bytes] { lease->Lease(bytes); });
  return lease.get();
}

SegmentLease::SegmentLease(const grpc::CallbackServerContext& context, const Resources& resources)
    : Stream(context, resources, "LeaseSegment") {}

void SegmentLease::Close() { End(absl::UnavailableError("the server shuts down")); }

absl::StatusOr<uint64_t> SegmentLease::BytesWanted(const grpc::ByteBuffer& request) const {
  if (!caller_.ok()) return caller_.status();
  const auto received = ReceivedMessage<v1::LeaseSegmentRequest>::Parse(
      request, resources_.parsing, resources_.segments, client_);
  if (!received.ok()) return received.status();
  // Whoever can open the socket's file is the server's user (Server::Listen).
  if (client_ == ClientAt::kUnixSocket) return (*received)->message().bytes();
  return absl::PermissionDeniedError("shared memory is only for clients over a Unix socket");
}

void SegmentLease::Lease(uint64_t bytes) {
  const absl::StatusOr<std::shared_ptr<SharedSegment>> segment = resources_.segments.Lease(bytes);
  if (!segment.ok()) return End(segment.status());
  WriterLock lock(mutex_);
  if (ended_) return resources_.segments.End((*segment)->name());
  segment_ = (*segment)->name();
  const auto response = std::make_shared<v1::LeaseSegmentResponse>();
  response->set_segment(segment_);
  response->set_object((*segment)->object());
  response->set_bytes((*segment)->size());
  response->set_alignment(1);
  response_ = SerializeInPlace(response);
  writing_ = true;
  WriteBegins();
  StartWrite(&response_);
}

void SegmentLease::OnWriteDone(bool ok) {
  WriterLock lock(mutex_);
  writing_ = false;
  WriteEnds();
  if (ended_) {
    Finish(ToGrpcStatus(status_));
  } else if (!ok) {
    EndLocked(absl::CancelledError("the client is gone"));
  }
}

void SegmentLease::OnCancel() { End(absl::CancelledError("the client is gone")); }

void SegmentLease::End(const absl::Status& status) {
  WriterLock lock(mutex_);
  EndLocked(status);
}

void SegmentLease::EndLocked(const absl::Status& status) {
  if (ended_) return;
  ended_ = true;
  status_ = status;
  if (!segment_.empty()) resources_.segments.End(segment_);
  if (!writing_) Finish(ToGrpcStatus(status));
}

void SegmentLease::OnDone() {
  std::shared_ptr<SegmentLease> self;
  {
    WriterLock lock(mutex_);
    timer_.Finish(status_.code());
    self = std::move(self_);
  }
  // Not under the lock, which comes after that of the open streams.
  Unregister();
}

}  // namespace sis
