// Memory that a client shares with a server on the same machine: arrays in it need not travel.
#pragma once

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/shared_memory/mapped_segments.h"
#include "client/shared_memory/segment_memory.h"
#include "sis/v1/ratio_service.grpc.pb.h"

namespace sis {

// A segment that the server leases to this process (Client::LeaseSharedMemory). Calls recognise
// arrays that lie in it by their address. The server unmaps its side with the object; when the
// server ends first the memory stays what it is, and arrays in it travel like any others. Nothing
// stays behind when a process is killed.
class SharedMemory final : private grpc::ClientReadReactor<v1::LeaseSegmentResponse> {
 public:
  // At least so many bytes. `segments` hears what is mapped. The status of the server, or
  // DeadlineExceeded if it doesn't answer in time, or FailedPrecondition if this process can't map
  // what the server made: it has another /dev/shm.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Lease(
      std::shared_ptr<v1::RatioService::Stub> stub, uint64_t bytes, absl::Duration timeout,
      std::shared_ptr<MappedSegments> segments);

  // No call may be using the memory, and what was allocated goes; records that were fetched into it
  // stay, and the memory with them.
  ~SharedMemory() override;
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  size_t size() const { return memory_->bytes().size(); }

  // `count` elements, which hold anything, at an address that is a multiple of 64; until Reset.
  // ResourceExhausted if no more are free in a row. Not thread-safe.
  template <typename T>
  absl::StatusOr<std::span<T>> Allocate(size_t count) {
    if (count == 0) return std::span<T>();
    std::unique_ptr<SegmentAllocation> range;
    if (count <= size() / sizeof(T)) range = memory_->Take(count * sizeof(T));
    if (range == nullptr) {
      return absl::ResourceExhaustedError(absl::StrCat("no ", count, " elements of ", sizeof(T),
                                                       " bytes are free in the ", size(),
                                                       " bytes of shared memory"));
    }
    T* const first = reinterpret_cast<T*>(range->bytes().data());
    allocated_.push_back(std::move(range));
    return std::span<T>(first, count);
  }
  // Takes everything back that was allocated, but no records; what it holds stays.
  void Reset() { allocated_.clear(); }

  // What messages call it.
  const std::string& segment() const { return segment_; }
  SegmentMemory& memory() { return *memory_; }

 private:
  SharedMemory(std::shared_ptr<v1::RatioService::Stub> stub,
               std::shared_ptr<MappedSegments> segments)
      : stub_(std::move(stub)), segments_(std::move(segments)) {}

  // Waits until the server has answered.
  absl::Status Wait(absl::Time deadline);

  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  const std::shared_ptr<v1::RatioService::Stub> stub_;
  const std::shared_ptr<MappedSegments> segments_;
  grpc::ClientContext context_;
  v1::LeaseSegmentRequest request_;
  v1::LeaseSegmentResponse response_;
  v1::LeaseSegmentResponse more_;  // of which there is none
  std::string segment_;
  std::shared_ptr<SegmentMemory> memory_;
  std::vector<std::unique_ptr<SegmentAllocation>> allocated_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool answered_ = false;  // guarded by mutex_, as are:
  bool started_ = false;
  bool ended_ = false;
  grpc::Status status_;  // when ended
};

}  // namespace sis
