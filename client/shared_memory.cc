#include "client/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/time/clock.h"
#include "client/grpc_status.h"

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
  absl::Status status = shared->Wait(absl::Now() + timeout);
  if (status.ok()) status = shared->Map();
  if (!status.ok()) return status;
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

absl::Status SharedMemory::Map() {
  const size_t size = response_.bytes();
  const auto failed = [this](absl::string_view call) {
    return absl::FailedPreconditionError(
        absl::StrCat(call, " of the server's segment ", segment_, ": ", std::strerror(errno),
                     "; do server and client have the same /dev/shm?"));
  };
  const int file = shm_open(segment_.c_str(), O_RDWR, 0);
  if (file < 0) return failed("shm_open");
  // The pages are there: mapping them all now spares the first pass a fault for each.
  void* const memory =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
  close(file);
  if (memory == MAP_FAILED) return failed("mmap");
  memory_ = {static_cast<std::byte*>(memory), size};
  // Nobody else needs the name as a file: now nothing stays behind, whoever is killed.
  shm_unlink(segment_.c_str());
  const std::lock_guard lock(mutex_);
  if (!ended_) segments_->Add(memory_, segment_);
  return absl::OkStatus();
}

SharedMemory::~SharedMemory() {
  {
    std::unique_lock lock(mutex_);
    if (started_) {
      context_.TryCancel();
      changed_.wait(lock, [this] { return ended_; });
    }
  }
  if (!memory_.empty()) munmap(memory_.data(), memory_.size());
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
