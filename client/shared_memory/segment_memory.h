// The memory of a segment as this process has it mapped, and which parts of it are in use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace sis {

class SegmentAllocation;

// Stays mapped while somebody refers to it. Thread-safe.
class SegmentMemory : public std::enable_shared_from_this<SegmentMemory> {
 public:
  // Maps the POSIX object that the server made, and takes its name off the file system: nothing
  // stays behind then, whoever is killed. FailedPrecondition if it can't be mapped.
  static absl::StatusOr<std::shared_ptr<SegmentMemory>> Map(const std::string& object,
                                                            size_t bytes);
  // Takes over what mmap(2) gave.
  explicit SegmentMemory(std::span<std::byte> mapping);
  ~SegmentMemory();
  SegmentMemory(const SegmentMemory&) = delete;
  SegmentMemory& operator=(const SegmentMemory&) = delete;

  std::span<std::byte> bytes() const { return memory_; }

  // So many bytes in a row, from a multiple of 64 on; null if no part that is free has as many.
  std::unique_ptr<SegmentAllocation> Take(size_t bytes);
  // All that is free in a row; null if nothing is.
  std::unique_ptr<SegmentAllocation> TakeLargest();

 private:
  friend class SegmentAllocation;

  // With mutex_ held.
  std::unique_ptr<SegmentAllocation> Cut(std::map<size_t, size_t>::iterator free, size_t bytes);
  void GiveBack(size_t begin, size_t end);

  const std::span<std::byte> memory_;
  std::mutex mutex_;
  // Where free parts begin and end, all multiples of 64, never side by side; guarded by mutex_.
  std::map<size_t, size_t> free_;
};

// A part of it that is in use while this lives.
class SegmentAllocation {
 public:
  ~SegmentAllocation();
  SegmentAllocation(const SegmentAllocation&) = delete;
  SegmentAllocation& operator=(const SegmentAllocation&) = delete;

  // In the segment.
  uint64_t offset() const { return begin_; }
  std::span<std::byte> bytes() const;

  // Keeps only the first so many bytes.
  void Shrink(size_t bytes);
  // Nobody will ever use it again: the server may still write to it.
  void Abandon();

 private:
  friend class SegmentMemory;
  SegmentAllocation(std::shared_ptr<SegmentMemory> memory, size_t begin, size_t end);

  const std::shared_ptr<SegmentMemory> memory_;
  const size_t begin_;
  size_t end_;
};

}  // namespace sis
