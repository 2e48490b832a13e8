#include "server/rpc/segment_lease.h"

#include <utility>

#include "server/rpc/grpc_status.h"
#include "server/wire/serialize.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {
namespace {

// No run has this name.
constexpr char kLeases[] = "";

}  // namespace

SegmentLease* SegmentLease::Start(const Resources& resources, ClientAt client,
                                  const absl::StatusOr<uint64_t>& bytes) {
  const std::shared_ptr<SegmentLease> lease(new SegmentLease(resources));
  {
    WriterLock lock(lease->mutex_);
    lease->self_ = lease;
    if (!bytes.ok()) {
      lease->EndLocked(bytes.status());
      return lease.get();
    }
    // Whoever can open the socket's file is the server's user (Server::Listen).
    if (client != ClientAt::kUnixSocket) {
      lease->EndLocked(
          absl::PermissionDeniedError("shared memory is only for clients over a Unix socket"));
      return lease.get();
    }
  }
  resources.workers.Schedule(kLeases, [lease, bytes = *bytes] { lease->Lease(bytes); });
  return lease.get();
}

SegmentLease::SegmentLease(const Resources& resources)
    : segments_(resources.segments),
      call_(resources.streams),
      timer_(resources.metrics, "LeaseSegment") {}

void SegmentLease::Lease(uint64_t bytes) {
  const absl::StatusOr<std::shared_ptr<SharedSegment>> segment = segments_.Lease(
      bytes,
      [self = shared_from_this()] { self->End(absl::UnavailableError("the server shuts down")); });
  if (!segment.ok()) return End(segment.status());
  WriterLock lock(mutex_);
  if (ended_) return segments_.End((*segment)->name());
  segment_ = (*segment)->name();
  const auto response = std::make_shared<v1::LeaseSegmentResponse>();
  response->set_segment(segment_);
  response->set_object((*segment)->object());
  response->set_bytes((*segment)->size());
  response_ = SerializeInPlace(response);
  writing_ = true;
  StartWrite(&response_);
}

void SegmentLease::OnWriteDone(bool ok) {
  WriterLock lock(mutex_);
  writing_ = false;
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
  if (!segment_.empty()) segments_.End(segment_);
  if (!writing_) Finish(ToGrpcStatus(status));
}

void SegmentLease::OnDone() {
  std::shared_ptr<SegmentLease> self;
  WriterLock lock(mutex_);
  timer_.Finish(status_.code());
  self = std::move(self_);
}

}  // namespace sis
