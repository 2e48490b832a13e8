// The cache in front of a store: reads through it, writes through it, and cleans up behind.
//
// Whatever waits for the store is called without any lock but SequenceParts::writing.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/cache/run.h"
#include "server/cache/run_registry.h"
#include "server/store/sequence_parts.h"
#include "server/store/store.h"
#include "server/threads/mutex.h"
#include "server/threads/worker_pool.h"

namespace sis {

// Thread-safe. Calls block, but for those named ...Behind.
class StoredCache final : public BackingStore {
 public:
  // Both must outlive the object.
  StoredCache(Store& store, RunRegistry& registry, Clock clock);
  // Tries once more what is to be dropped: a clean end loses no release.
  ~StoredCache() override;

  Store& store() { return store_; }

  bool shared() const override { return store_.shared(); }
  std::unique_ptr<Attachment> Attach() override;
  // With what other servers have stored until now.
  Run::Found Find(Run& run, const SequenceName& name) override;
  void DropBehind(const Run& run, const SequenceName& name, MissingReason reason) override;
  // Tries again what could not be dropped. To be called now and then.
  void RetryDropsBehind();

  // For sequences that the run was told to release. Releases those that only the store has, and
  // returns how many they were; OK means that all releases are stored. Errors as in Store.
  absl::StatusOr<int64_t> FinishRelease(Run& run, std::span<const SequenceName> names);

  // A sequence for appending; null if there is none yet. Tries again what could not be written
  // before. Errors as in Store, or of Write.
  absl::StatusOr<std::shared_ptr<Sequence>> FindToAppend(Run& run, const SequenceName& name);

  // Stores what is noted with the sequence as unwritten. Errors as in Store, and then it stays
  // noted. FailedPrecondition if the sequence was dropped, Unavailable if the store has other
  // content: then memory forgets the sequence.
  absl::Status Write(Run& run, const SequenceName& name, Sequence& sequence);

  // For one that was sealed: stores blocks as memory has merged them, unless too many are waiting
  // for that.
  void MergeBehind(std::shared_ptr<Run> run, SequenceName name, std::shared_ptr<Sequence> sequence);

 private:
  // Once, whoever asks meanwhile. kNeverArrived if the store doesn't have it.
  absl::StatusOr<Run::Found> Load(Run& run, const SequenceName& name) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<Run::Found> LoadNow(Run& run, const SequenceName& name);
  // Whether there may be room now for so many bytes of the run.
  bool MakeRoom(Run& run, int64_t bytes);
  // Makes room for it if need be.
  absl::Status Apply(Run& run, Sequence& sequence, const StoredPart& part);
  static void NoteStored(const StoredPart& part, SequenceParts& parts)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(parts.writing);
  // Adds to memory what is stored, and takes it off what is unwritten. Errors as in Write.
  // `parts`: the sequence's.
  absl::Status TakeInStored(Run& run, const SequenceName& name, Sequence& sequence,
                            SequenceParts& parts) ABSL_EXCLUSIVE_LOCKS_REQUIRED(parts.writing);
  // Stores merged blocks of at least so many positions. What fails is tried again with the next
  // ones.
  void Merge(const Run& run, const SequenceName& name, const Sequence& sequence,
             SequenceParts& parts, uint32_t least) ABSL_EXCLUSIVE_LOCKS_REQUIRED(parts.writing);
  absl::Time ExpiryOf(const Run& run) const;
  // Whether all that is stored of it is. False if that can't be told.
  bool IsStale(const SequenceIdentity& sequence);
  void WriteDrops() ABSL_LOCKS_EXCLUDED(drops_mutex_);

  Store& store_;
  RunRegistry& registry_;
  const Clock clock_;

  Mutex mutex_;
  std::set<SequenceIdentity> loading_ ABSL_GUARDED_BY(mutex_);
  std::condition_variable_any loaded_;
  std::atomic<int> merging_ = 0;  // waiting or under way

  Mutex drops_mutex_;  // a leaf but for the queue of behind_
  // What the store is still to drop, and why.
  std::map<SequenceIdentity, MissingReason> drops_ ABSL_GUARDED_BY(drops_mutex_);
  bool writing_drops_ ABSL_GUARDED_BY(drops_mutex_) = false;  // scheduled or under way

  WorkerPool behind_;  // destroyed first: does what is waiting
};

}  // namespace sis
