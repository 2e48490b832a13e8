// What leaves a stored cache: releases, and what memory has dropped.
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
// be found so again; a release is answered with an error.
constexpr size_t kMostPendingDrops = 65'536;
// How long the reason of a dropped sequence is kept for later lives of the server.
constexpr absl::Duration kReasonKept = absl::Hours(24);

}  // namespace

absl::StatusOr<int64_t> StoredCache::FinishRelease(Run& run, std::span<const SequenceName> names) {
  constexpr auto kReleased = static_cast<uint8_t>(MissingReason::kReleased);
  int64_t released = 0;
  absl::Status error;
  std::vector<DroppedSequence> dropped;
  std::vector<const SequenceName*> only_stored;  // of those dropped; null for the others
  for (const SequenceName& name : names) {
    const SequenceName* unknown = nullptr;
    const Run::Found found = run.FindToChange(name);
    if (found == Run::Found(MissingReason::kNeverArrived)) {
      const absl::StatusOr<bool> stored = store_.Has(IdentityOf(run, name));
      error.Update(stored.status());
      if (!stored.ok() || !*stored) continue;
      unknown = &name;
    } else if (!std::holds_alternative<MissingReason>(found)) {
      released += run.Release(name);  // it was read again since
    } else if (found != Run::Found(MissingReason::kReleased)) {
      continue;  // dropped before, for another reason
    }
    dropped.push_back({IdentityOf(run, name), kReleased});
    only_stored.push_back(unknown);
  }
  if (absl::Status stored = store_.Drop(dropped); stored.ok()) {
    for (size_t i = 0; i < dropped.size(); ++i) {
      NoteDrop(dropped[i].sequence, {.reason = MissingReason::kReleased, .stored = true});
      if (only_stored[i] == nullptr) continue;
      released += run.NoteDropped(*only_stored[i], MissingReason::kReleased);
    }
  } else {
    error.Update(stored);
  }
  if (error.ok()) return released;
  return absl::Status(error.code(), absl::StrCat("not all releases are stored, send them again: ",
                                                 error.message()));
}

void StoredCache::DropBehind(const Run& run, const SequenceName& name, MissingReason reason) {
  NoteDrop(IdentityOf(run, name), {.reason = reason});
}

void StoredCache::RemoveDroppedBehind(const SequenceIdentity& sequence) {
  NoteDrop(sequence, {.reason = MissingReason::kReleased, .stored = true});
}

void StoredCache::NoteDrop(const SequenceIdentity& sequence, const PendingDrop& pending) {
  WriterLock lock(drops_mutex_);
  if (drops_.size() >= kMostPendingDrops && !drops_.contains(sequence)) return;
  const auto drop = drops_.try_emplace(sequence, pending).first;
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
  {
    WriterLock lock(drops_mutex_);
    for (const auto drop : drops) {
      drop->second.queued = false;
      (drop->second.stored ? stored : unstored).push_back(drop);
      if (drop->second.stored) continue;
      dropped.push_back({drop->first, static_cast<uint8_t>(drop->second.reason)});
    }
  }
  if (store_.Drop(dropped).ok()) stored.insert(stored.end(), unstored.begin(), unstored.end());
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
