// One incarnation of a run: its sequences, their use, and the reasons why others were dropped.
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
#include "server/cache/version_labels.h"
#include "server/threads/mutex.h"

namespace sis {

class Inspection;

using Clock = std::function<absl::Time()>;

// The description of a run in GetRun (v1::Run).
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

// The description of a sequence in ListSequences (v1::ListSequencesResponse.Sequence).
struct SequenceDescription {
  SequenceName name;
  uint32_t committed_length;
  int64_t positions;
  bool sealed;
  bool unread;
  uint64_t newest_version;
  int64_t bytes;
};

// Thread-safe. Lock order: Run, then Sequence. A thread locks at most one sequence.
class Run {
 public:
  // Without a backing store (null), evicted records are lost; with one they can be read again. The
  // budgets must outlive the run.
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
  // For the next incarnation, which continues to count.
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
  // Finds a sequence in memory for reading. Counts as a use, and as activity of the run's reader.
  Found Find(const SequenceName& name) ABSL_LOCKS_EXCLUDED(mutex_);
  // Finds a sequence in memory for appending or releasing. Counts as a use, but not as reading.
  Found FindToChange(const SequenceName& name) ABSL_LOCKS_EXCLUDED(mutex_);
  // Finds or creates a sequence for appending. Returns FailedPrecondition if the sequence was
  // dropped or the run is closed, ResourceExhausted if the budget is used up.
  absl::StatusOr<std::shared_ptr<Sequence>> FindOrCreate(const SequenceName& name)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Finds sequences to append to, all under one lock. Sets null for sequences that don't exist or
  // accept no records; FindOrCreate returns the reason. Counts as a use.
  void FindToAppend(std::span<const SequenceNameView> names,
                    std::span<std::shared_ptr<Sequence>> found) ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the bytes charged for a sequence without records.
  int64_t BaseBytes(SequenceNameView name) const;

  using Held = HeldSequence;
  // Returns an empty sequence that is not yet in the run, or ResourceExhausted if the budget is
  // used up.
  absl::StatusOr<std::shared_ptr<Held>> NewSequence(const SequenceName& name);
  // Adds the sequence, unless the run has one of that name. Returns the sequence that the run has
  // now, or the reason why it was dropped.
  Found Adopt(const SequenceName& name, std::shared_ptr<Held> held) ABSL_LOCKS_EXCLUDED(mutex_);
  // Removes a sequence from memory because the store's records differ. Does nothing if `sequence`
  // is not null and the run has another object of that name.
  void Forget(const SequenceName& name, const Sequence* sequence) ABSL_LOCKS_EXCLUDED(mutex_);
  // Notes that a sequence was dropped from the store while it wasn't in memory. Removes what memory
  // has of it by now. Returns false if the run already has a reason for it.
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
  // Returns the number of sequences that were dropped as stale, or FailedPrecondition if `version`
  // is below the current one and `label` is empty. A label is added to an older version, too;
  // errors as in CheckVersionLabel.
  absl::StatusOr<int64_t> AdvanceVersion(uint64_t version, absl::string_view label = "")
      ABSL_LOCKS_EXCLUDED(mutex_);
  VersionLabels version_labels() const ABSL_LOCKS_EXCLUDED(mutex_);
  // See sis::AddVersionLabels.
  void AddVersionLabels(const VersionLabels& labels) ABSL_LOCKS_EXCLUDED(mutex_);

  // Keeps the sequences that exist for at least `length`, unless they are released. Until then they
  // are not evicted, don't expire, and are not dropped as stale. Counts as a read.
  void Keep(std::span<const SequenceName> names, absl::Duration length) ABSL_LOCKS_EXCLUDED(mutex_);
  // If nothing of the run was fetched or evaluated for longer than Limits::reader_absence, forgets
  // its inspected values.
  void ForgetAbandonedInspection() ABSL_LOCKS_EXCLUDED(mutex_);

  // A run gets at most one part in kInspectedShare of the bytes for inspection.
  static constexpr int64_t kInspectedShare = 8;

  // Returns false if there is no such sequence.
  bool Release(const SequenceName& name) ABSL_LOCKS_EXCLUDED(mutex_);

  // The cost of the next four depends on the number of sequences that they drop or find, not on the
  // number of all sequences (docs/decisions.md, 10).

  // Drops expired and stale sequences. Checks only a few of the sequences in use.
  void DropExpired() ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the bytes that evicting everything up to `last` would free, at most `enough`. Includes
  // unread sequences, whatever `last` is, if nothing of the run was fetched or evaluated for longer
  // than Limits::reader_absence.
  int64_t EvictableBytes(int64_t enough, Evict last = Evict::kUnread) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the time of the last use of the least recently used sequence that could be evicted
  // among `which`; nullopt if there is none, or if `last` excludes them.
  std::optional<absl::Time> OldestEvictable(Evict which, Evict last = Evict::kUnread)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Evicts the least recently used sequence, of kRead first, then of the others that `last` allows.
  // Returns false if there is none.
  bool EvictOldest(Evict last = Evict::kUnread) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the number of sequences that the calls above have examined since the start.
  int64_t examined() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Drops all sequences and steps, even if others hold the run, and refuses new ones. Called when
  // another incarnation replaces this one, or the run is deleted.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);

  RunDescription Describe() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the first `limit` sequences after a name, in the order of names. Examines all of them.
  // Doesn't count as a use.
  std::vector<SequenceDescription> ListSequences(const std::optional<SequenceName>& after,
                                                 size_t limit) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the number of sequences in memory; faster than Describe.
  int64_t sequences() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Member& Insert(const SequenceName& name, std::shared_ptr<Held> held)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Remove(Member& member) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Found FindLocked(Member* member, const SequenceName& name, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Notes a use, and returns the member; null if there is none, or it has expired.
  Member* Touch(Member* member, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Drop(Member& member, MissingReason reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the number of dropped sequences.
  int64_t DropStale() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Notes a request to fetch or evaluate.
  void NoteRead(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsAbandoned() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  uint64_t OldestFreshVersion() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Returns `asked`, or kUnread for a run that nobody reads any more.
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
  VersionLabels version_labels_ ABSL_GUARDED_BY(mutex_);
  Members members_ ABSL_GUARDED_BY(mutex_);
  VersionIndex versions_ ABSL_GUARDED_BY(mutex_);  // empty without max_staleness
  DroppedSequences dropped_ ABSL_GUARDED_BY(mutex_);
  // Time of the last request to fetch or evaluate; at first, the time when the run was opened.
  absl::Time last_read_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sis
