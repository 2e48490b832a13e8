#include "client/shared_memory/shared_memory.h"

#include <utility>

#include "absl/time/clock.h"
#include "client/types/grpc_status.h"

namespace sis {

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemory::Lease(
    std::shared_ptr<v1::RatioService::Stub> stub, uint64_t bytes, absl::Duration timeout,
    std::shared_ptr<MappedSegments> segments) {
  std::unique_ptr<SharedMemory> shared(new SharedMemory(std::move(stub), std::move(segments)));
  shared->request_.set_bytes(bytes);
  shared->stub_->async()->LeaseSegment(&shared->context_, &shared->request_, shared.get());
  {
    const std::lock_guard lock(shared->mutex_);
    shared->started_ = true;
  }
  shared->StartRead(&shared->response_);
  shared->StartCall();
  if (absl::Status status = shared->Wait(absl::Now() + timeout); !status.ok()) return status;
  absl::StatusOr<std::shared_ptr<SegmentMemory>> memory =
      SegmentMemory::Map(shared->response_.object(), shared->response_.bytes());
  if (!memory.ok()) return memory.status();
  shared->memory_ = *std::move(memory);
  const std::lock_guard lock(shared->mutex_);
  if (!shared->ended_) {
    const size_t alignment = shared->response_.alignment();
    shared->segments_->Add(shared->memory_->bytes(), shared->segment_,
                           alignment == 0 ? MappedSegments::kAlignment : alignment);
  }
  return shared;
}

absl::Status SharedMemory::Wait(absl::Time deadline) {
  std::unique_lock lock(mutex_);
  const bool heard = changed_.wait_until(lock, absl::ToChronoTime(deadline),
                                         [this] { return answered_ || ended_; });
  if (!heard) return absl::DeadlineExceededError("LeaseSegment: the server gives no answer");
  if (!answered_) return ToAbslStatus(status_);
  segment_ = response_.segment();
  return absl::OkStatus();
}

SharedMemory::~SharedMemory() {
  std::unique_lock lock(mutex_);
  if (started_) {
    context_.TryCancel();
    changed_.wait(lock, [this] { return ended_; });
  }
}

void SharedMemory::OnReadDone(bool ok) {
  const std::lock_guard lock(mutex_);
  if (!ok) return;
  if (!answered_) StartRead(&more_);  // comes back when the lease ends
  answered_ = true;
  changed_.notify_all();
}

void SharedMemory::OnDone(const grpc::Status& status) {
  const std::lock_guard lock(mutex_);
  segments_->Remove(segment_);
  status_ = status;
  ended_ = true;
  changed_.notify_all();
}

}  // namespace sis
