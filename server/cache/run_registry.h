// All runs of a server, and the budgets that they share.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/cache/byte_budget.h"
#include "server/cache/caller.h"
#include "server/cache/limits.h"
#include "server/cache/named_runs.h"
#include "server/cache/run.h"
#include "server/threads/mutex.h"

namespace sis {

// Thread-safe. Lock order: RunRegistry, then Run.
class RunRegistry {
 public:
  RunRegistry(int64_t cache_bytes, const Limits& limits, Clock clock);

  struct Created {
    std::shared_ptr<Run> run;
    bool created;
  };
  // Implements CreateRun of the API. The backing store, if any, must outlive the calls of the run.
  absl::StatusOr<Created> Create(const std::string& run_id, uint64_t incarnation,
                                 const RunConfig& config, BackingStore* backing = nullptr,
                                 const Caller& caller = Caller()) ABSL_LOCKS_EXCLUDED(mutex_);
  // The outcome of a Create, without creating anything.
  struct Plan {
    std::shared_ptr<Run>
        present;  // the run that Create would return; null if it would open an incarnation
    uint64_t incarnation;
    RunConfig config;   // with its owner
    uint64_t previous;  // the incarnation before, which is or was deleted; 0 if none is known
  };
  absl::StatusOr<Plan> PlanToCreate(const std::string& run_id, uint64_t incarnation,
                                    const RunConfig& config, const Caller& caller = Caller()) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Opens an incarnation that the backing store has, even beyond the limits of runs, unless a later
  // one is current. Returns the current one, or FailedPrecondition if this one was deleted.
  absl::StatusOr<std::shared_ptr<Run>> Restore(const std::string& run_id, uint64_t incarnation,
                                               const RunConfig& config, BackingStore* backing)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the run. `incarnation` 0 means the current one. Returns FailedPrecondition for another
  // incarnation, and NotFound for an unknown run or one that the caller may not use. Counts as a
  // use of the run.
  absl::StatusOr<std::shared_ptr<Run>> Find(const std::string& run_id, uint64_t incarnation = 0,
                                            const Caller& caller = Caller()) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Closes and removes the run if its current incarnation is at most `incarnation`; otherwise
  // returns false. A run created later gets a larger incarnation, as long as this one is among the
  // last kDeletedRunsKept.
  bool Delete(const std::string& run_id, uint64_t incarnation) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the runs that no Find or Create has named for longer than `unused`.
  std::vector<std::shared_ptr<Run>> Idle(absl::Duration unused) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the runs that the caller may use, in the order of run ids.
  std::vector<std::shared_ptr<Run>> List(const Caller& caller = Caller()) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the counts of runs while they had no metrics of their own; nullopt if there was none.
  std::optional<RunTotals> other_totals() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Chooses the runs with metrics of their own, by recent activity. Must be called periodically.
  void ChooseNamed() ABSL_LOCKS_EXCLUDED(mutex_);

  // If runs lack space for inspection, takes it from runs that nobody reads any more
  // (Run::ForgetAbandonedInspection). Once one run's share is free, the others try again. Must be
  // called periodically.
  void ShareInspection() ABSL_LOCKS_EXCLUDED(mutex_);

  // Tries to make room for `bytes` of the run. Drops stale and expired sequences, then evicts the
  // least recently used ones: of this run if its own quota is short, otherwise of any run; of
  // Evict::kRead before the others that `last` allows. Evicts none if all of them would not
  // suffice. Returns null if there may be room now, or the budget that is short.
  const ByteBudget* MakeRoom(Run& run, int64_t bytes, Evict last) ABSL_LOCKS_EXCLUDED(mutex_);

  // Drops expired sequences of all runs. Must be called periodically.
  void DropExpired() ABSL_LOCKS_EXCLUDED(mutex_);

  size_t size() const ABSL_LOCKS_EXCLUDED(mutex_) {
    ReaderLock lock(mutex_);
    return runs_.size();
  }
  int max_runs() const { return limits_.max_runs; }
  // Returns the largest number of runs of one owner. Ignores runs without an owner.
  int64_t runs_of_one_owner() const ABSL_LOCKS_EXCLUDED(mutex_);
  int max_runs_per_owner() const { return limits_.max_runs_per_owner; }
  int max_top_k() const { return limits_.max_top_k; }
  const ByteBudget& budget() const { return budget_; }
  // The totals of steps get one part in kStepsShare of the cache's bytes, in addition to them.
  static constexpr int64_t kStepsShare = 16;
  const ByteBudget& steps_budget() const { return steps_budget_; }

 private:
  struct Closing;
  struct Entry {
    std::shared_ptr<Run> run;
    mutable std::atomic<int64_t> last_named;  // nanoseconds since 1970
  };

  absl::StatusOr<Plan> PlanLocked(const std::string& run_id, uint64_t incarnation,
                                  const RunConfig& config, const Caller& caller) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Returns OK if the limits allow another run.
  absl::Status CheckRoomForRun(absl::string_view owner) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Returns the new run. Sets `superseded` to the run that it replaces, which the caller must close
  // without the lock. For `is_new` see NamedRuns::Add.
  std::shared_ptr<Run> Open(const std::string& run_id, uint64_t incarnation,
                            const RunConfig& config, BackingStore* backing, bool is_new,
                            std::shared_ptr<Run>& superseded) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns 0 if none was deleted.
  uint64_t LastDeleted(const std::string& run_id) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  // Evicts the least recently used sequence of any run; false if there is none.
  bool EvictOldest(Evict last) ABSL_LOCKS_EXCLUDED(mutex_);

  const Limits limits_;
  const Clock clock_;
  ByteBudget budget_;  // this and the next two outlive the runs
  ByteBudget steps_budget_;
  ByteBudget inspection_budget_;

  mutable Mutex mutex_;
  std::map<std::string, Entry> runs_ ABSL_GUARDED_BY(mutex_);
  // Run id -> the last incarnation that was deleted.
  absl::flat_hash_map<std::string, uint64_t> deleted_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::pair<std::string, uint64_t>> deleted_in_order_ ABSL_GUARDED_BY(mutex_);
  NamedRuns named_ ABSL_GUARDED_BY(mutex_);
};

// Returns InvalidArgument unless the id has 1 to 256 bytes of [A-Za-z0-9._-].
absl::Status CheckRunId(absl::string_view id);

}  // namespace sis
