// Memory that a client shares with a server on the same machine: arrays in it need not travel.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "client/shared_memory/segment_memory.h"

namespace sis {

class LeaseSegmentCall;

// A segment that the server leases to this process (Client::LeaseSharedMemory). Calls recognise
// arrays that lie in it by their address. The server unmaps its side with the object; when the
// server ends first the memory stays what it is, and arrays in it travel like any others. Nothing
// stays behind when a process is killed.
class SharedMemory final {
 public:
  SharedMemory(std::shared_ptr<SegmentMemory> memory, std::string segment,
               std::unique_ptr<LeaseSegmentCall> call);

  // No call may be using the memory, and what was allocated goes; records that were fetched into it
  // stay, and the memory with them.
  ~SharedMemory();
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
  const std::shared_ptr<SegmentMemory> memory_;
  const std::string segment_;
  std::vector<std::unique_ptr<SegmentAllocation>> allocated_;
  const std::unique_ptr<LeaseSegmentCall> call_;  // ends before the memory goes
};

}  // namespace sis
