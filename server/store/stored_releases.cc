// What leaves a stored cache: releases, leases that end, and what memory has dropped.
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/store/sequence_log.h"
#include "server/store/stored_cache.h"

namespace sis {
namespace {

// Drops written at a time.
constexpr size_t kDropsAtOnce = 64;
// Drops that may wait for a store that can't write. Beyond that, what is stale or has expired will
// be found so again; a release is answered with an error, but for what is leased.
constexpr size_t kMostPendingDrops = 65'536;
// How long the reason of a dropped sequence is kept for other replicas and later lives, and the end
// of a lease.
constexpr absl::Duration kReasonKept = absl::Hours(24);

}  // namespace

absl::StatusOr<int64_t> StoredCache::FinishRelease(Run& run, std::span<const SequenceName> names) {
  constexpr auto kReleased = static_cast<uint8_t>(MissingReason::kReleased);
  const auto in_memory = [&](const SequenceName& name) { return run.BytesOf(name) > 0; };
  int64_t released = 0;
  absl::Status error;
  std::vector<DroppedSequence> dropped;
  std::vector<const SequenceName*> only_stored;  // of those dropped; null for the others
  for (const SequenceName& name : names) {
    if (in_memory(name)) released += run.Release(name);  // if it was read again since
    const bool leased = in_memory(name);
    if (leased && store_.shared()) continue;
    const SequenceName* unknown = nullptr;
    if (!leased) {
      const Run::Found found = run.FindToChange(name);
      if (found == Run::Found(MissingReason::kNeverArrived)) {
        const absl::StatusOr<bool> stored = store_.Has(IdentityOf(run, name));
        error.Update(stored.status());
        if (!stored.ok() || !*stored) continue;
        unknown = &name;
      } else if (found != Run::Found(MissingReason::kReleased)) {
        continue;  // dropped before, for another reason
      }
    }
    dropped.push_back({IdentityOf(run, name), kReleased});
    only_stored.push_back(unknown);
  }
  const std::vector<absl::Status> statuses = store_.Drop(dropped);
  for (size_t i = 0; i < dropped.size(); ++i) {
    if (!statuses[i].ok()) {
      error.Update(absl::Status(statuses[i].code(), absl::StrCat(ToString(dropped[i].sequence),
                                                                 ": ", statuses[i].message())));
      continue;
    }
    NoteDrop(dropped[i].sequence, {.reason = MissingReason::kReleased, .stored = true});
    if (only_stored[i] == nullptr) continue;
    released += run.NoteDropped(*only_stored[i], MissingReason::kReleased);
  }
  if (error.ok()) return released;
  return absl::Status(error.code(), absl::StrCat("not all releases are stored, send them again: ",
                                                 error.message()));
}

absl::Status StoredCache::EndLeasesElsewhere(const Run& run, std::span<const uint64_t> lease_ids) {
  std::vector<LeaseIdentity> leases;
  for (const uint64_t id : lease_ids) leases.push_back({run.id(), run.incarnation(), id});
  absl::Status first_error;
  for (const absl::Status& status : store_.EndLeases(leases, clock_() + kReasonKept)) {
    first_error.Update(status);
  }
  if (first_error.ok()) return absl::OkStatus();
  return absl::Status(
      first_error.code(),
      absl::StrCat("not all leases have ended, send them again: ", first_error.message()));
}

void StoredCache::FollowReleases(Run& run, size_t most_sequences) {
  const Run::HeldHere held = run.NextHeld(most_sequences);
  std::vector<LeaseIdentity> leases;
  for (const uint64_t id : held.lease_ids) leases.push_back({run.id(), run.incarnation(), id});
  if (!leases.empty()) {
    const std::vector<absl::StatusOr<bool>> ended = store_.HaveEnded(leases);
    for (size_t i = 0; i < leases.size(); ++i) {
      if (ended[i].ok() && *ended[i]) run.EndLease(leases[i].id);
    }
  }
  std::vector<SequenceIdentity> sequences;
  for (const SequenceName& name : held.unleased) sequences.push_back(IdentityOf(run, name));
  if (sequences.empty()) return;
  const std::vector<absl::StatusOr<std::optional<uint8_t>>> reasons = store_.WhyDropped(sequences);
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (!reasons[i].ok() || !reasons[i]->has_value()) continue;
    run.NoteDropped(held.unleased[i], static_cast<MissingReason>(**reasons[i]));
  }
}

void StoredCache::DropBehind(const Run& run, const SequenceName& name, const Sequence& sequence,
                             MissingReason reason) {
  PendingDrop pending{.reason = reason};
  if (IsOfWhatWasKnown(reason)) {
    pending.entries = LogOf(sequence).next;
    pending.expires = ExpiryOf(run);
    if (pending.entries == 0) return;  // nothing is stored
  }
  NoteDrop(IdentityOf(run, name), pending);
}

void StoredCache::RemoveDroppedBehind(const SequenceIdentity& sequence) {
  NoteDrop(sequence, {.reason = MissingReason::kReleased, .stored = true});
}

void StoredCache::NoteDrop(const SequenceIdentity& sequence, const PendingDrop& pending) {
  WriterLock lock(drops_mutex_);
  if (drops_.size() >= kMostPendingDrops && !drops_.contains(sequence)) return;
  const auto [drop, added] = drops_.try_emplace(sequence, pending);
  if (drop->second.entries.has_value()) {  // what is noted later takes as much, or more
    drop->second.reason = pending.reason;
    drop->second.entries = pending.entries;
    drop->second.expires = pending.expires;
  }
  drop->second.stored |= pending.stored;
  Queue(drop);
}

void StoredCache::Queue(PendingDrops::iterator drop) {
  if (std::exchange(drop->second.queued, true)) return;
  queued_drops_.push_back(drop);
  if (std::exchange(writing_drops_, true)) return;
  behind_.Schedule("", [this] { WriteDrops(); });
}

void StoredCache::RetryDropsBehind() {
  WriterLock lock(drops_mutex_);
  for (auto drop = drops_.begin(); drop != drops_.end(); ++drop) Queue(drop);
}

void StoredCache::WriteDrops() {
  for (;;) {
    std::vector<PendingDrops::iterator> drops;
    {
      WriterLock lock(drops_mutex_);
      while (!queued_drops_.empty() && drops.size() < kDropsAtOnce) {
        drops.push_back(queued_drops_.front());
        queued_drops_.pop_front();
      }
      if (drops.empty()) {
        writing_drops_ = false;
        return;
      }
    }
    WriteDrops(drops);
  }
}

void StoredCache::WriteDrops(std::span<const PendingDrops::iterator> drops) {
  std::vector<PendingDrops::iterator> unstored, stored, gone;
  std::vector<DroppedSequence> dropped;
  std::vector<std::pair<PendingDrops::iterator, PendingDrop>> stale;
  {
    WriterLock lock(drops_mutex_);
    for (const auto drop : drops) {
      drop->second.queued = false;
      if (drop->second.entries.has_value()) {
        stale.emplace_back(drop, drop->second);
        continue;
      }
      (drop->second.stored ? stored : unstored).push_back(drop);
      if (drop->second.stored) continue;
      dropped.push_back({drop->first, static_cast<uint8_t>(drop->second.reason)});
    }
  }
  for (const auto& [drop, known] : stale) {
    if (store_.DropStale(drop->first, *known.entries, known.expires).ok()) gone.push_back(drop);
  }
  const std::vector<absl::Status> statuses = store_.Drop(dropped);
  for (size_t i = 0; i < unstored.size(); ++i) {
    if (statuses[i].ok()) stored.push_back(unstored[i]);
  }
  for (const auto drop : stored) {
    if (store_.RemoveDropped(drop->first, clock_() + kReasonKept).ok()) gone.push_back(drop);
  }
  WriterLock lock(drops_mutex_);
  for (const auto drop : stored) drop->second.stored = true;
  for (const auto drop : gone) {
    if (!drop->second.queued) drops_.erase(drop);
  }
}

}  // namespace sis
