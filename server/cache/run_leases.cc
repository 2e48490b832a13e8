#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/cache/run.h"
#include "server/inspect/inspection.h"

namespace sis {

absl::StatusOr<uint64_t> Run::Lease(std::span<const SequenceName> names, absl::Duration length) {
  WriterLock lock(mutex_);
  if (leases_.size() >= static_cast<size_t>(limits_.max_leases)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the run has ", leases_.size(), " leases, the most allowed"));
  }
  const absl::Time now = clock_();
  NoteRead(now);
  sis::Lease lease{.expires = now + length, .length = length, .members = {}, .charge = {}};
  for (const SequenceName& name : names) {
    if (Member* member = Touch(members_.Find(name), now)) lease.members.push_back(member);
  }
  lease.members.shrink_to_fit();
  int64_t bytes = 0;
  bool covered = false;
  for (Member* member : lease.members) {
    if (member->leases < Leases::kCovered) {
      covered = true;
    } else {
      bytes += Leases::kMemberBytes;
    }
    members_.AddLease(*member, now);
  }
  if (!covered) bytes += Leases::kBytes;
  while (!budget_.TryCharge(bytes)) {
    if (EvictOldestLocked(Evict::kUnread)) continue;
    Unlease(lease);
    return absl::ResourceExhaustedError(
        absl::StrCat(bytes, " bytes for a lease are not to be had"));
  }
  lease.charge = ByteCharge(budget_, bytes);
  return leases_.Add(std::move(lease));
}

absl::Status Run::RenewLease(uint64_t lease_id) {
  WriterLock lock(mutex_);
  NoteRead(clock_());
  if (leases_.Find(lease_id, last_read_) == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("lease ", lease_id, " has ended"));
  }
  leases_.Renew(lease_id, last_read_);
  return absl::OkStatus();
}

bool Run::EndLease(uint64_t lease_id) {
  WriterLock lock(mutex_);
  const std::optional<sis::Lease> lease = leases_.Take(lease_id);
  if (!lease.has_value()) return false;
  Unlease(*lease);
  return true;
}

bool Run::IsAbandoned() const { return clock_() - last_read_ > limits_.lease_absence; }

bool Run::EndAbandonedLeases() {
  WriterLock lock(mutex_);
  if (leases_.size() == 0 || !IsAbandoned()) return false;
  EndLeasesLocked();
  return true;
}

void Run::ForgetAbandonedInspection() {
  {
    ReaderLock lock(mutex_);
    if (!IsAbandoned()) return;
  }
  inspection_->Clear();
}

void Run::EndLeases() {
  WriterLock lock(mutex_);
  EndLeasesLocked();
}

void Run::EndLeasesLocked() {
  while (const std::optional<sis::Lease> lease = leases_.TakeEnded(absl::InfiniteFuture())) {
    Unlease(*lease);
  }
}

void Run::Unlease(const sis::Lease& lease) {
  const absl::Time now = clock_();
  for (Member* member : lease.members) {
    members_.EndLease(*member, now);
    if (member->leases > 0) continue;
    if (member->release_when_free) {
      Drop(*member, MissingReason::kReleased);
    } else if (member->idle() && IsStale(*member, OldestFreshVersion())) {
      Drop(*member, MissingReason::kStale);
    } else if (config_.max_staleness.has_value()) {
      versions_.Add(*member);
    }
  }
}

}  // namespace sis
