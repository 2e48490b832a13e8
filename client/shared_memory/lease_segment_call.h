// The call by which a server leases a segment.
#pragma once

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/shared_memory/mapped_segments.h"
#include "client/shared_memory/segment_memory.h"
#include "client/shared_memory/shared_memory.h"
#include "sis/v1/ratio_service.grpc.pb.h"

namespace sis {

// Lasts as long as the lease, which ends with the object.
class LeaseSegmentCall final : private grpc::ClientReadReactor<v1::LeaseSegmentResponse> {
 public:
  // At least so many bytes. `segments` hears what is mapped. The status of the server, or
  // DeadlineExceeded if it doesn't answer in time, or FailedPrecondition if this process can't map
  // what the server made: it has another /dev/shm.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Make(
      std::shared_ptr<v1::RatioService::Stub> stub, uint64_t bytes, absl::Duration timeout,
      std::shared_ptr<MappedSegments> segments);

  ~LeaseSegmentCall() override;
  LeaseSegmentCall(const LeaseSegmentCall&) = delete;
  LeaseSegmentCall& operator=(const LeaseSegmentCall&) = delete;

 private:
  LeaseSegmentCall(std::shared_ptr<v1::RatioService::Stub> stub,
                   std::shared_ptr<MappedSegments> segments)
      : stub_(std::move(stub)), segments_(std::move(segments)) {}

  // Waits until the server has answered.
  absl::Status Wait(absl::Time deadline);
  // Nothing if the lease has ended since.
  void Announce(const SegmentMemory& memory);

  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  const std::shared_ptr<v1::RatioService::Stub> stub_;
  const std::shared_ptr<MappedSegments> segments_;
  grpc::ClientContext context_;
  v1::LeaseSegmentRequest request_;
  v1::LeaseSegmentResponse response_;
  v1::LeaseSegmentResponse more_;  // of which there is none

  std::mutex mutex_;
  std::condition_variable changed_;
  bool answered_ = false;  // guarded by mutex_, as are:
  bool started_ = false;
  bool ended_ = false;
  grpc::Status status_;  // when ended
};

}  // namespace sis
