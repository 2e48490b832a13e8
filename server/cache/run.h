// One incarnation of a run: its sequences, who holds them, and why others are gone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/cache/backing_store.h"
#include "server/cache/byte_budget.h"
#include "server/cache/dropped_sequences.h"
#include "server/cache/limits.h"
#include "server/cache/members.h"
#include "server/cache/missing.h"
#include "server/cache/recent_events.h"
#include "server/cache/run_config.h"
#include "server/cache/run_counters.h"
#include "server/cache/sequence.h"
#include "server/cache/sequence_name.h"
#include "server/cache/step_ledger.h"
#include "server/cache/version_index.h"
#include "server/threads/mutex.h"

namespace sis {

class Inspection;

using Clock = std::function<absl::Time()>;

// What GetRun says of a run (v1::Run).
struct RunDescription {
  std::string id;
  uint64_t incarnation;
  RunConfig config;
  uint64_t policy_version;
  uint64_t sequences;
  uint64_t unread_sequences = 0;
  uint64_t sealed_sequences = 0;
  uint64_t positions = 0;
  uint64_t bytes;
  uint64_t kept_sequences = 0;
  std::optional<uint64_t> last_draw;

  friend bool operator==(const RunDescription&, const RunDescription&) = default;
};

// What ListSequences says of one (v1::ListSequencesResponse.Sequence).
struct SequenceDescription {
  SequenceName name;
  uint32_t committed_length;
  int64_t positions;
  bool sealed;
  bool unread;
  uint64_t newest_version;
  int64_t bytes;
};

// Thread-safe. Lock order: Run, then Sequence; no two sequences at once.
class Run {
 public:
  // Without a backing store (null) what is evicted is gone; else it can be read again. The budgets
  // must outlive the run.
  Run(std::string id, uint64_t incarnation, RunConfig config, const Limits& limits,
      ByteBudget& server_budget, ByteBudget& steps_budget, ByteBudget& inspection_budget,
      std::shared_ptr<RunCounters> counters, Clock clock, BackingStore* backing = nullptr);

  ~Run();

  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  const std::string& id() const { return id_; }
  uint64_t incarnation() const { return incarnation_; }
  const RunConfig& config() const { return config_; }
  const Limits& limits() const { return limits_; }
  RunCounters& counters() const { return *counters_; }
  // For the next incarnation, which goes on counting.
  const std::shared_ptr<RunCounters>& shared_counters() const { return counters_; }
  ByteBudget& budget() { return budget_; }
  const ByteBudget& budget() const { return budget_; }
  StepLedger& steps() { return steps_; }
  const StepLedger& steps() const { return steps_; }
  Inspection& inspection() const { return *inspection_; }
  RecentEvents& recent_events() { return recent_events_; }
  const RecentEvents& recent_events() const { return recent_events_; }
  BackingStore* backing() const { return backing_; }
  absl::Time now() const { return clock_(); }

  using Found = FoundSequence;
  // In memory, for reading. Counts as use, and shows that the run's reader is there.
  Found Find(const SequenceName& name) ABSL_LOCKS_EXCLUDED(mutex_);
  // In memory, for appending or releasing. Counts as use, but not as reading.
  Found FindToChange(const SequenceName& name) ABSL_LOCKS_EXCLUDED(mutex_);
  // For appending. FailedPrecondition if the sequence was dropped or the run is closed,
  // ResourceExhausted if the budget is used up.
  absl::StatusOr<std::shared_ptr<Sequence>> FindOrCreate(const SequenceName& name)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Finds sequences to append to, all under one lock. Null for those that aren't there or take no
  // records: FindOrCreate says why. Counts as use.
  void FindToAppend(std::span<const SequenceNameView> names,
                    std::span<std::shared_ptr<Sequence>> found) ABSL_LOCKS_EXCLUDED(mutex_);

  // What a sequence of that name costs without records.
  int64_t BaseBytes(SequenceNameView name) const;

  using Held = HeldSequence;
  // An empty sequence, not in the run yet. ResourceExhausted if the budget is used up.
  absl::StatusOr<std::shared_ptr<Held>> NewSequence(const SequenceName& name);
  // Adds the sequence, unless the run has one of that name. Returns the one it has now, or why it
  // may have none.
  Found Adopt(const SequenceName& name, std::shared_ptr<Held> held) ABSL_LOCKS_EXCLUDED(mutex_);
  // Removes a sequence from memory because the store has something else. Does nothing if the run
  // has another object by now than `sequence`, unless that is null.
  void Forget(const SequenceName& name, const Sequence* sequence) ABSL_LOCKS_EXCLUDED(mutex_);
  // A sequence was dropped from the store while it wasn't in memory: removes what memory has of it
  // and remembers the reason. False if there was a reason already.
  bool NoteDropped(const SequenceName& name, MissingReason reason) ABSL_LOCKS_EXCLUDED(mutex_);

  // Removes the sequence if it has no positions, gaps or seal, and nobody holds it. Used after a
  // FindOrCreate whose entry was refused.
  void ForgetIfEmpty(SequenceNameView name) ABSL_LOCKS_EXCLUDED(mutex_);

  // Return values of an existing sequence, otherwise 0. These calls don't count as use.
  uint32_t CommittedLength(SequenceNameView name) const ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t BytesOf(SequenceNameView name) const ABSL_LOCKS_EXCLUDED(mutex_);

  uint64_t policy_version() const ABSL_LOCKS_EXCLUDED(mutex_);
  // The oldest version that isn't stale.
  uint64_t oldest_fresh_version() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns how many sequences were dropped as stale. FailedPrecondition if version is below the
  // current one.
  absl::StatusOr<int64_t> AdvanceVersion(uint64_t version) ABSL_LOCKS_EXCLUDED(mutex_);

  // Keeps those of the sequences that are there for at least this long, unless they are released:
  // they are not evicted, and neither expire nor are dropped as stale. They count as read.
  void Keep(std::span<const SequenceName> names, absl::Duration length) ABSL_LOCKS_EXCLUDED(mutex_);
  // If nothing of the run was fetched or evaluated for longer than Limits::reader_absence, forgets
  // what is inspected.
  void ForgetAbandonedInspection() ABSL_LOCKS_EXCLUDED(mutex_);

  // One run gets at most one part in so many of the bytes for inspection.
  static constexpr int64_t kInspectedShare = 8;

  // False if there is none such.
  bool Release(const SequenceName& name) ABSL_LOCKS_EXCLUDED(mutex_);

  // What the next four cost does not depend on how many sequences there are, but on how many they
  // drop or find (docs/decisions.md, 10).

  // Drops sequences whose time has come, and those that are stale. Of those in use
  // a few are looked at.
  void DropExpired() ABSL_LOCKS_EXCLUDED(mutex_);
  // What evicting all that can be evicted would free, unread sequences too if `last` says so, or if
  // nothing of the run was fetched or evaluated for longer than Limits::reader_absence; or
  // `enough`, if it is no less than that.
  int64_t EvictableBytes(int64_t enough, Evict last = Evict::kUnread) ABSL_LOCKS_EXCLUDED(mutex_);
  // When the least recently used of these sequences that could be evicted was used; nullopt if they
  // are not among `last`.
  std::optional<absl::Time> OldestEvictable(Evict which, Evict last = Evict::kUnread)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Evicts the least recently used one, first of kRead, then of what `last` adds; false if there is
  // none.
  bool EvictOldest(Evict last = Evict::kUnread) ABSL_LOCKS_EXCLUDED(mutex_);
  // How many sequences the calls above have looked at, ever.
  int64_t looked_at() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Another incarnation has taken over: drops all sequences, whoever still holds the
  // run, and refuses new ones.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);

  RunDescription Describe() const ABSL_LOCKS_EXCLUDED(mutex_);
  // The first of those after a name, by name; looks at all. Doesn't count as use.
  std::vector<SequenceDescription> ListSequences(const std::optional<SequenceName>& after,
                                                 size_t limit) const ABSL_LOCKS_EXCLUDED(mutex_);
  // How many are held; quicker than Describe.
  int64_t sequences() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Member& Insert(const SequenceName& name, std::shared_ptr<Held> held)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Remove(Member& member) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Found FindLocked(Member* member, const SequenceName& name, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Notes a use; null if there is no such member, or it has expired.
  Member* Touch(Member* member, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Drop(Member& member, MissingReason reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns how many.
  int64_t DropStale() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Something was fetched or evaluated, or asked for.
  void NoteRead(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsAbandoned() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  uint64_t OldestFreshVersion() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // What may go where up to `asked` may: of a run that nobody reads any more, all.
  Evict LastToGo(Evict asked) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  const std::string id_;
  const uint64_t incarnation_;
  const RunConfig config_;
  const Limits limits_;
  const absl::Duration time_to_live_;
  const std::shared_ptr<RunCounters> counters_;
  const Clock clock_;
  BackingStore* const backing_;
  ByteBudget budget_;  // outlives the sequences below
  StepLedger steps_;
  RecentEvents recent_events_;
  const std::unique_ptr<Inspection> inspection_;

  mutable Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t policy_version_ ABSL_GUARDED_BY(mutex_) = 0;
  Members members_ ABSL_GUARDED_BY(mutex_);
  VersionIndex versions_ ABSL_GUARDED_BY(mutex_);  // empty without max_staleness
  DroppedSequences dropped_ ABSL_GUARDED_BY(mutex_);
  // When something was fetched or evaluated, or asked for; at first when the run was opened.
  absl::Time last_read_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sis
