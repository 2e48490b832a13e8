// Connects the cache to a store: reads, writes, and drops in the background.
//
// Calls that wait for the store must be made without any lock except SequenceParts::writing.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

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

// Thread-safe. Calls block, except those named ...Behind, which work in the background.
class StoredCache final : public BackingStore {
 public:
  // Both must outlive the object.
  StoredCache(Store& store, RunRegistry& registry, Clock clock);
  // Retries pending drops, so that a clean shutdown loses no release.
  ~StoredCache() override;

  Store& store() { return store_; }
  absl::Time now() const { return clock_(); }

  bool shared() const override { return store_.shared(); }
  std::unique_ptr<Attachment> Attach() override { return std::make_unique<SequenceParts>(); }
  // Includes everything that other servers have stored until now.
  Run::Found Find(Run& run, const SequenceName& name) override;
  void DropBehind(const Run& run, const SequenceName& name, MissingReason reason) override;
  void DropRunBehind(const Run& run) override;
  // Retries drops that failed. Must be called periodically.
  void RetryDropsBehind();

  // With a shared store: sends which sequences this server has released or sealed, and marks the
  // sequences that other servers have. Must be called every second.
  void ExchangeNews() ABSL_LOCKS_EXCLUDED(news_mutex_);
  // The next ExchangeNews sends that the run is in use.
  void NoteUse(const Run& run) { NoteNews({run.id(), run.incarnation(), "", 0}); }
  // Returns true if another server has sent within this time that the run is in use, or if this
  // server may have missed that.
  bool IsUsedElsewhere(const std::string& run_id, absl::Duration within)
      ABSL_LOCKS_EXCLUDED(news_mutex_);

  // Completes Run::Release: releases the sequences that only the store has, and returns their
  // number. After OK all releases are stored. Errors as in Store.
  absl::StatusOr<int64_t> FinishRelease(Run& run, std::span<const SequenceName> names);

  // Returns a sequence for appending, or null if there is none yet. Retries earlier writes that
  // failed. Errors as in Store and Write.
  absl::StatusOr<std::shared_ptr<Sequence>> FindToAppend(Run& run, const SequenceName& name);

  // Stores the sequence's unwritten parts. Errors as in Store; the parts then stay unwritten.
  // Returns FailedPrecondition if the sequence was dropped, Unavailable if the store has other
  // content; both remove the sequence from memory.
  absl::Status Write(Run& run, const SequenceName& name, Sequence& sequence);

  // Stores the merged blocks of a sealed sequence, unless too many sequences are waiting for that.
  void MergeBehind(std::shared_ptr<Run> run, SequenceName name, std::shared_ptr<Sequence> sequence);

 private:
  // Loads a sequence once for all concurrent callers. Returns kNeverArrived if the store doesn't
  // have it.
  absl::StatusOr<Run::Found> Load(Run& run, const SequenceName& name) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<Run::Found> LoadNow(Run& run, const SequenceName& name);
  // Evicts if necessary. Returns true if there may now be room for `bytes` of the run.
  bool MakeRoom(Run& run, int64_t bytes);
  // Adds a stored part to memory. Makes room if necessary.
  absl::Status Apply(Run& run, Sequence& sequence, const StoredPart& part);
  // Adds the stored parts to memory, and removes them from the unwritten ones. `parts` belongs to
  // the sequence. Errors as in Write.
  absl::Status TakeInStored(Run& run, const SequenceName& name, Sequence& sequence,
                            SequenceParts& parts) ABSL_EXCLUSIVE_LOCKS_REQUIRED(parts.writing);
  // Stores merged blocks of at least `least` positions. Failures are retried with the next merge.
  void Merge(const Run& run, const SequenceName& name, const Sequence& sequence,
             SequenceParts& parts, uint32_t least) ABSL_EXCLUSIVE_LOCKS_REQUIRED(parts.writing);
  absl::Time ExpiryOf(const Run& run) const;
  // Returns the revision of the stored sequence if all its blocks are stale, else 0; Unavailable if
  // the store doesn't answer.
  absl::StatusOr<uint64_t> StaleRevision(const SequenceIdentity& sequence);
  void WriteDrops() ABSL_LOCKS_EXCLUDED(drops_mutex_);
  // Adds news about a sequence, or about the whole run if the id is empty.
  void NoteNews(const SequenceIdentity& sequence) ABSL_LOCKS_EXCLUDED(news_mutex_);

  Store& store_;
  RunRegistry& registry_;
  const Clock clock_;

  Mutex mutex_;
  std::set<SequenceIdentity> loading_ ABSL_GUARDED_BY(mutex_);
  std::condition_variable_any loaded_;
  std::atomic<int> merging_ = 0;  // number waiting or running

  Mutex drops_mutex_;  // locked before news_mutex_ and the queue of behind_
  // Sequences that the store must still drop, with the reasons.
  std::map<SequenceIdentity, MissingReason> drops_ ABSL_GUARDED_BY(drops_mutex_);
  bool writing_drops_ ABSL_GUARDED_BY(drops_mutex_) = false;  // scheduled or running

  Mutex news_mutex_;  // a leaf
  std::vector<std::string> news_ ABSL_GUARDED_BY(news_mutex_);
  // Times at which other servers last sent that a run is in use, by its id.
  std::map<std::string, absl::Time> used_ ABSL_GUARDED_BY(news_mutex_);
  // Times of the last exchange, and of the first one after the last long silence.
  absl::Time heard_ ABSL_GUARDED_BY(news_mutex_) = absl::InfinitePast();
  absl::Time heard_since_ ABSL_GUARDED_BY(news_mutex_) = absl::InfiniteFuture();

  WorkerPool behind_;  // destroyed first, which runs all waiting work
};

}  // namespace sis
