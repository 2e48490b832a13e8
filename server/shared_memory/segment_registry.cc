#include "server/shared_memory/segment_registry.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace sis {
namespace {

// As long as names are.
constexpr size_t kMostShown = 32;

absl::Status Closed() { return absl::UnavailableError("the server shuts down"); }

}  // namespace

absl::StatusOr<std::shared_ptr<SharedSegment>> SegmentRegistry::Lease(uint64_t bytes) {
  if (budget_.limit() == 0) {
    return absl::FailedPreconditionError(
        "shared memory is off: the server runs without --shared_memory_bytes");
  }
  // Above all limits, so that it is no matter of signs.
  const uint64_t wanted =
      std::min(std::max(bytes, SharedSegment::WholePages(bytes)), uint64_t{INT64_MAX});
  const auto charge = static_cast<int64_t>(wanted);
  if (!budget_.TryCharge(charge)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("bytes: ", bytes, ", but of --shared_memory_bytes=", budget_.limit(), " ",
                     budget_.limit() - budget_.used(), " are free"));
  }
  absl::StatusOr<std::unique_ptr<SharedSegment>> made = SharedSegment::Make(bytes);
  if (!made.ok()) {
    budget_.Refund(charge);
    return made.status();
  }
  std::shared_ptr<SharedSegment> segment(made->release(), [this, charge](SharedSegment* gone) {
    delete gone;
    budget_.Refund(charge);
  });
  WriterLock lock(mutex_);
  if (closed_) return Closed();
  leased_.emplace(segment->name(), segment);
  return segment;
}

void SegmentRegistry::End(const std::string& name) {
  std::map<std::string, std::shared_ptr<SharedSegment>>::node_type ended;
  {
    WriterLock lock(mutex_);
    ended = leased_.extract(name);
  }
  // Memory is given back, if nobody else holds it, without the lock.
  if (!ended.empty()) ended.mapped()->Unlink();
}

absl::StatusOr<std::shared_ptr<SharedSegment>> SegmentRegistry::Find(const std::string& name,
                                                                     ClientAt client) {
  if (client != ClientAt::kUnixSocket) {
    return absl::PermissionDeniedError("segment: only for clients over a Unix socket");
  }
  ReaderLock lock(mutex_);
  if (closed_) return Closed();
  const auto found = leased_.find(name);
  if (found == leased_.end()) {
    // No longer than the question, however many entries get it as an answer.
    return absl::NotFoundError(
        name.size() <= kMostShown
            ? absl::StrCat("segment: no '", name, "' is leased")
            : absl::StrCat("segment: none is leased with a name of ", name.size(), " bytes"));
  }
  return found->second;
}

void SegmentRegistry::Close() {
  std::map<std::string, std::shared_ptr<SharedSegment>> ended;
  {
    WriterLock lock(mutex_);
    closed_ = true;
    ended.swap(leased_);
  }
  for (const auto& [name, segment] : ended) segment->Unlink();
}

int64_t SegmentRegistry::size() {
  ReaderLock lock(mutex_);
  return static_cast<int64_t>(leased_.size());
}

}  // namespace sis
