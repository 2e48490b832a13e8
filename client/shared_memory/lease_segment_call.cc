#include "client/shared_memory/lease_segment_call.h"

#include <cstddef>
#include <utility>

#include "absl/time/clock.h"
#include "client/types/grpc_status.h"

namespace sis {

absl::StatusOr<std::unique_ptr<SharedMemory>> LeaseSegmentCall::Make(
    std::shared_ptr<v1::RatioService::Stub> stub, uint64_t bytes, absl::Duration timeout,
    std::shared_ptr<MappedSegments> segments) {
  std::unique_ptr<LeaseSegmentCall> call(
      new LeaseSegmentCall(std::move(stub), std::move(segments)));
  call->request_.set_bytes(bytes);
  call->stub_->async()->LeaseSegment(&call->context_, &call->request_, call.get());
  {
    const std::lock_guard lock(call->mutex_);
    call->started_ = true;
  }
  call->StartRead(&call->response_);
  call->StartCall();
  if (absl::Status status = call->Wait(absl::Now() + timeout); !status.ok()) return status;
  const v1::LeaseSegmentResponse& response = call->response_;
  absl::StatusOr<std::shared_ptr<SegmentMemory>> memory =
      SegmentMemory::Map(response.object(), response.bytes());
  if (!memory.ok()) return memory.status();
  call->Announce(**memory);
  std::string segment = response.segment();
  return std::make_unique<SharedMemory>(*std::move(memory), std::move(segment), std::move(call));
}

absl::Status LeaseSegmentCall::Wait(absl::Time deadline) {
  std::unique_lock lock(mutex_);
  const bool heard = changed_.wait_until(lock, absl::ToChronoTime(deadline),
                                         [this] { return answered_ || ended_; });
  if (!heard) return absl::DeadlineExceededError("LeaseSegment: the server gives no answer");
  return answered_ ? absl::OkStatus() : ToAbslStatus(status_);
}

void LeaseSegmentCall::Announce(const SegmentMemory& memory) {
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  const size_t alignment = response_.alignment();
  segments_->Add(memory.bytes(), response_.segment(),
                 alignment == 0 ? MappedSegments::kAlignment : alignment);
}

LeaseSegmentCall::~LeaseSegmentCall() {
  std::unique_lock lock(mutex_);
  if (started_) {
    context_.TryCancel();
    changed_.wait(lock, [this] { return ended_; });
  }
}

void LeaseSegmentCall::OnReadDone(bool ok) {
  const std::lock_guard lock(mutex_);
  if (!ok) return;
  if (!answered_) StartRead(&more_);  // comes back when the lease ends
  answered_ = true;
  changed_.notify_all();
}

void LeaseSegmentCall::OnDone(const grpc::Status& status) {
  const std::lock_guard lock(mutex_);
  segments_->Remove(response_.segment());
  status_ = status;
  ended_ = true;
  changed_.notify_all();
}

}  // namespace sis
