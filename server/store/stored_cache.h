// The cache in front of a durable store: reads through it, writes through it, and cleans up behind.
//
// Whatever waits for the store is called without any lock but SequenceLog::writing.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/cache/run.h"
#include "server/cache/run_registry.h"
#include "server/store/sequence_log.h"
#include "server/store/sequence_store.h"
#include "server/threads/mutex.h"
#include "server/threads/worker_pool.h"

namespace sis {

// Thread-safe. Calls block, but for those named ...Behind.
class StoredCache final : public BackingStore {
 public:
  // Both must outlive the object.
  StoredCache(SequenceStore& store, RunRegistry& registry, Clock clock);
  // Tries once more what is to be dropped: a clean end loses no release.
  ~StoredCache() override;

  SequenceStore& store() { return store_; }

  std::unique_ptr<Attachment> Attach() override { return std::make_unique<SequenceLog>(); }
  Run::Found Find(Run& run, const SequenceName& name) override;
  void DropBehind(const Run& run, const SequenceName& name, MissingReason reason) override;
  // Tries again what could not be dropped. To be called now and then.
  void RetryDropsBehind();
  // Removes what is left of a dropped sequence.
  void RemoveDroppedBehind(const SequenceIdentity& sequence);

  // For sequences that the run was told to release. Releases those that only the store has, and
  // returns how many they were; OK means that all releases are stored. Errors as in SequenceStore.
  absl::StatusOr<int64_t> FinishRelease(Run& run, std::span<const SequenceName> names);

  // A sequence for appending; null if there is none yet. Tries again what could not be written
  // before. Errors as in SequenceStore, or of Write.
  absl::StatusOr<std::shared_ptr<Sequence>> FindToAppend(Run& run, const SequenceName& name);

  // Adds a change, made in memory under log.order, to what is unwritten.
  void Note(SequenceLog& log, LogEntry entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(log.order);

  // Stores what is noted in the sequence's log as unwritten. Errors as in SequenceStore, and then
  // it stays noted. FailedPrecondition if the sequence was dropped, Unavailable if another object
  // of this sequence was stored: then memory forgets this one.
  absl::Status Write(Run& run, const SequenceName& name, Sequence& sequence);

  // For one that was sealed: stores the whole form in place of the log, unless too many are waiting
  // for that.
  void SealBehind(std::shared_ptr<Run> run, SequenceName name, std::shared_ptr<Sequence> sequence);

 private:
  // Once, whoever asks meanwhile. kNeverArrived if the store doesn't have it.
  absl::StatusOr<Run::Found> Load(Run& run, const SequenceName& name) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<Run::Found> LoadNow(Run& run, const SequenceName& name);
  // Whether there may be room now for so many bytes of the run.
  bool MakeRoom(Run& run, int64_t bytes);
  // Makes room for it if need be.
  absl::Status Apply(Run& run, Sequence& sequence, const LogEntry& entry);
  absl::Status Seal(const Run& run, const SequenceName& name, Sequence& sequence);
  // Writes the whole form if the log takes far more than the sequence holds, which came in many
  // small blocks. `log`: the sequence's.
  absl::Status Shorten(const Run& run, const SequenceName& name, Sequence& sequence,
                       SequenceLog& log) ABSL_EXCLUSIVE_LOCKS_REQUIRED(log.writing);
  absl::Status WriteWholeForm(const Run& run, const SequenceName& name, Sequence& sequence,
                              SequenceLog& log) ABSL_EXCLUSIVE_LOCKS_REQUIRED(log.writing);
  absl::Time ExpiryOf(const Run& run) const;

  // What the store is to drop, until all of it is removed.
  struct PendingDrop {
    MissingReason reason;
    bool stored = false;  // the reason is, and so what is left no longer counts
    bool queued = false;
  };
  using PendingDrops = std::map<SequenceIdentity, PendingDrop>;
  void NoteDrop(const SequenceIdentity& sequence, const PendingDrop& pending)
      ABSL_LOCKS_EXCLUDED(drops_mutex_);
  void Queue(PendingDrops::iterator drop) ABSL_EXCLUSIVE_LOCKS_REQUIRED(drops_mutex_);
  // What is queued; what fails stays for a retry.
  void WriteDrops() ABSL_LOCKS_EXCLUDED(drops_mutex_);
  void WriteDrops(std::span<const PendingDrops::iterator> drops) ABSL_LOCKS_EXCLUDED(drops_mutex_);

  SequenceStore& store_;
  RunRegistry& registry_;
  const Clock clock_;

  Mutex mutex_;
  std::set<SequenceIdentity> loading_ ABSL_GUARDED_BY(mutex_);
  std::condition_variable_any loaded_;
  std::atomic<int> sealing_ = 0;  // waiting or under way

  Mutex drops_mutex_;  // a leaf but for the queue of behind_
  // Only the thread behind erases, so that what is queued stays valid.
  PendingDrops drops_ ABSL_GUARDED_BY(drops_mutex_);
  std::deque<PendingDrops::iterator> queued_drops_ ABSL_GUARDED_BY(drops_mutex_);
  bool writing_drops_ ABSL_GUARDED_BY(drops_mutex_) = false;  // scheduled or under way

  WorkerPool behind_;  // destroyed first: does what is waiting
};

}  // namespace sis
