// Memory that the server shares with a client (docs/adr/0016).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace sis {

// A POSIX shared-memory object. What it holds may change at any time under whoever reads it, and a
// client may even truncate it; so it is copied, or else looked at by who looks at everything once
// only, and values are validated and used in what came of that. Any thread may do so.
class SharedSegment {
 public:
  // Makes one of so many bytes, rounded up to whole pages, all in memory and zero, under a name
  // that can't be guessed. InvalidArgument if 0, ResourceExhausted if the system has not as many.
  static absl::StatusOr<std::unique_ptr<SharedSegment>> Make(uint64_t bytes);
  // What Make rounds up to.
  static uint64_t WholePages(uint64_t bytes);

  // Unlinks segments of servers that are dead: that were killed after a client had asked, and
  // before it had mapped and unlinked the segment. Returns how many.
  static int UnlinkAbandoned();

  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  // As shm_open takes it.
  const std::string& name() const { return name_; }
  size_t size() const { return size_; }

  // Takes the name away, if a client has not done so; the memory goes with the last who maps it.
  void Unlink();

  // Copies bytes that must be there. Where the file has been cut off zeros are read, and what is
  // written is lost.
  void Read(size_t offset, size_t size, void* into) const;
  void Write(size_t offset, size_t size, const void* from);

  // The bytes where they are: for whoever reads each of them once, while a GuardedAccess of the
  // same thread lives.
  std::span<char> mapping() const { return {memory_, size_}; }

 private:
  SharedSegment(std::string name, int file, char* memory, size_t size);

  const std::string name_;
  // Locked while the segment may be in use: how others see that its server lives.
  const int file_;
  char* const memory_;
  const size_t size_;
};

}  // namespace sis
