// Memory that the server shares with a client (docs/adr/0016).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace sis {

// A POSIX shared-memory object. A client may write to it, or even truncate it, while it is read: so
// values are copied, and the copy is validated and used. Only who reads every value once may read
// in place. Any thread may do so.
class SharedSegment {
 public:
  // Makes one of so many bytes, rounded up to whole pages, all in memory and zero. InvalidArgument
  // if 0, ResourceExhausted if the system has not as many.
  static absl::StatusOr<std::unique_ptr<SharedSegment>> Make(uint64_t bytes);
  // What Make rounds up to.
  static uint64_t WholePages(uint64_t bytes);

  // Unlinks the segments of servers that were killed before their clients had unlinked them.
  // Returns how many.
  static int UnlinkAbandoned();

  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  // What messages call it: 32 hexadecimal digits that can't be guessed, and that only the client
  // which leased it is told.
  const std::string& name() const { return name_; }
  // The object's name, as shm_open takes it. Any user of the machine can see it in /dev/shm.
  const std::string& object() const { return object_; }
  size_t size() const { return size_; }

  // Takes the object's name away, if a client has not done so; the memory goes with the last who
  // maps it.
  void Unlink();

  // Copies bytes that must be there. Where the file has been cut off zeros are read, and what is
  // written is lost.
  void Read(size_t offset, size_t size, void* into) const;
  void Write(size_t offset, size_t size, const void* from);

  // The bytes where they are: for whoever reads each of them once, while a GuardedAccess of the
  // same thread lives.
  std::span<char> mapping() const { return {memory_, size_}; }

 private:
  SharedSegment(std::string name, std::string object, int file, char* memory, size_t size);

  const std::string name_;
  const std::string object_;
  // Locked while the segment may be in use: how others see that its server lives.
  const int file_;
  char* const memory_;
  const size_t size_;
};

}  // namespace sis
