// The segments that are leased, within a total of bytes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/memory/byte_budget.h"
#include "server/shared_memory/shared_segment.h"
#include "server/threads/mutex.h"

namespace sis {

// Where a client is connected.
enum class ClientAt { kUnixSocket, kElsewhere };

// Thread-safe. A segment's bytes count from the moment it is made until the last who holds it lets
// go: the lease, and every request that found it. The registry must outlive them all.
class SegmentRegistry {
 public:
  explicit SegmentRegistry(int64_t limit_bytes) : budget_(limit_bytes) {}

  // A new segment, to be found until End. Takes a second for a few GB. FailedPrecondition if
  // segments are off, InvalidArgument and ResourceExhausted name what was asked for.
  absl::StatusOr<std::shared_ptr<SharedSegment>> Lease(uint64_t bytes);
  void End(const std::string& name);

  // What a request refers to. NotFound if it is not leased, PermissionDenied for a client that
  // could not have leased it.
  absl::StatusOr<std::shared_ptr<SharedSegment>> Find(const std::string& name, ClientAt client);

  // Ends all leases; no more are given.
  void Close();

  int64_t used_bytes() const { return budget_.used(); }
  int64_t size();

 private:
  ByteBudget budget_;
  Mutex mutex_;
  std::map<std::string, std::shared_ptr<SharedSegment>> leased_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace sis
