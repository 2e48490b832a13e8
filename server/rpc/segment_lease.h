// The server's end of one LeaseSegment.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/rpc/open_streams.h"
#include "server/rpc/resources.h"
#include "server/threads/mutex.h"

namespace sis {

// Leases a segment for as long as the call lives. Owns itself; what it is given must outlive the
// gRPC server.
class SegmentLease final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                           private OpenStreams::Stream {
 public:
  // `context` is the call's, `request` a LeaseSegmentRequest. A worker makes the segment, as that
  // takes a while.
  static SegmentLease* Start(const grpc::CallbackServerContext& context, const Resources& resources,
                             const grpc::ByteBuffer& request);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  SegmentLease(const grpc::CallbackServerContext& context, const Resources& resources);
  void Close() override;
  // How many bytes are wanted, or why they are refused.
  absl::StatusOr<uint64_t> BytesWanted(const grpc::ByteBuffer& request) const;
  void Lease(uint64_t bytes);
  // Ends the lease, and the call as soon as nothing is being written.
  void End(const absl::Status& status);
  void EndLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  // A worker may still be busy when gRPC is done.
  std::shared_ptr<SegmentLease> self_ ABSL_GUARDED_BY(mutex_);
  std::string segment_ ABSL_GUARDED_BY(mutex_);  // empty until there is one
  grpc::ByteBuffer response_;                    // what is written
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);  // when ended
};

}  // namespace sis
