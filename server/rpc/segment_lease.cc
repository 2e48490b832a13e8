#include "server/rpc/segment_lease.h"

#include <utility>

#include "server/rpc/grpc_status.h"

namespace sis {
namespace {

// No run has this name.
constexpr char kLeases[] = "";

}  // namespace

SegmentLease* SegmentLease::Start(const Resources& resources, ClientAt client, uint64_t bytes) {
  const std::shared_ptr<SegmentLease> lease(new SegmentLease(resources));
  {
    WriterLock lock(lease->mutex_);
    lease->self_ = lease;
    // Whoever can open the socket's file is the server's user (Server::Listen).
    if (client != ClientAt::kUnixSocket) {
      lease->EndLocked(
          absl::PermissionDeniedError("shared memory is only for clients over a Unix socket"));
      return lease.get();
    }
  }
  resources.workers.Schedule(kLeases, [lease, bytes] { lease->Lease(bytes); });
  return lease.get();
}

SegmentLease::SegmentLease(const Resources& resources)
    : segments_(resources.segments), timer_(resources.metrics, "LeaseSegment") {}

void SegmentLease::Lease(uint64_t bytes) {
  const absl::StatusOr<std::shared_ptr<SharedSegment>> segment = segments_.Lease(
      bytes,
      [self = shared_from_this()] { self->End(absl::UnavailableError("the server shuts down")); });
  if (!segment.ok()) return End(segment.status());
  WriterLock lock(mutex_);
  if (ended_) return segments_.End((*segment)->name());
  response_.set_segment((*segment)->name());
  response_.set_object((*segment)->object());
  response_.set_bytes((*segment)->size());
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
  if (!response_.segment().empty()) segments_.End(response_.segment());
  if (!writing_) Finish(ToGrpcStatus(status));
}

void SegmentLease::OnDone() {
  std::shared_ptr<SegmentLease> self;
  WriterLock lock(mutex_);
  timer_.Finish(status_.code());
  self = std::move(self_);
}

}  // namespace sis
