// All runs of a server, and the bytes they share.
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
  // As CreateRun of the API. The backing store, if any, must outlive the calls of the run.
  absl::StatusOr<Created> Create(const std::string& run_id, uint64_t incarnation,
                                 const RunConfig& config, BackingStore* backing = nullptr,
                                 const Caller& caller = Caller()) ABSL_LOCKS_EXCLUDED(mutex_);
  // What Create would do, without doing it.
  struct Plan {
    std::shared_ptr<Run> present;  // what it would return; null if it would open an incarnation
    uint64_t incarnation;
    RunConfig config;   // with its owner
    uint64_t previous;  // the incarnation before, which is or was deleted; 0 if none is known
  };
  absl::StatusOr<Plan> PlanToCreate(const std::string& run_id, uint64_t incarnation,
                                    const RunConfig& config, const Caller& caller = Caller()) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Opens an incarnation that the backing store has, however many runs there are, unless a later
  // one is present. Returns the one that is present. FailedPrecondition if it was deleted.
  absl::StatusOr<std::shared_ptr<Run>> Restore(const std::string& run_id, uint64_t incarnation,
                                               const RunConfig& config, BackingStore* backing)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The present incarnation if it is 0. NotFound, or FailedPrecondition for one that isn't present.
  // A run that the caller may not use is as if it were not there. Counts as use of the run.
  absl::StatusOr<std::shared_ptr<Run>> Find(const std::string& run_id, uint64_t incarnation = 0,
                                            const Caller& caller = Caller()) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Closes and forgets the run, if this incarnation or one before it is present. One that is opened
  // later is larger, as long as this is among the last kDeletedRunsKept. False if none was present.
  bool Delete(const std::string& run_id, uint64_t incarnation) ABSL_LOCKS_EXCLUDED(mutex_);
  // Those that no Find or Create has named for longer than this.
  std::vector<std::shared_ptr<Run>> Idle(absl::Duration unused) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Those that the caller may use, by run id.
  std::vector<std::shared_ptr<Run>> List(const Caller& caller = Caller()) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  // What runs counted while they had no metrics of their own; nothing if there never were such.
  std::optional<RunTotals> other_totals() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Which have metrics of their own, by who counts something now. To be called now and then.
  void ChooseNamed() ABSL_LOCKS_EXCLUDED(mutex_);

  // Where runs lack room to be inspected: those that nobody reads any more give up theirs
  // (Run::ForgetAbandonedInspection), and once there is one run's share the others try again. To be
  // called now and then.
  void ShareInspection() ABSL_LOCKS_EXCLUDED(mutex_);

  // Tries to make room for so many bytes of the run: drops what is stale or expired, then evicts
  // least recently used sequences, of this run if its own quota is short, else of any: those of
  // Evict::kRead before what `last` adds; or none, if all of them would not do. Null if there may
  // be room now, else the budget that is short.
  const ByteBudget* MakeRoom(Run& run, int64_t bytes, Evict last) ABSL_LOCKS_EXCLUDED(mutex_);

  // Drops what has expired, in all runs. To be called now and then.
  void DropExpired() ABSL_LOCKS_EXCLUDED(mutex_);

  size_t size() const ABSL_LOCKS_EXCLUDED(mutex_) {
    ReaderLock lock(mutex_);
    return runs_.size();
  }
  int max_runs() const { return limits_.max_runs; }
  // The most that belong to one owner; those that belong to nobody aren't counted.
  int64_t runs_of_one_owner() const ABSL_LOCKS_EXCLUDED(mutex_);
  int max_runs_per_owner() const { return limits_.max_runs_per_owner; }
  int max_top_k() const { return limits_.max_top_k; }
  const ByteBudget& budget() const { return budget_; }
  // Of the totals of steps, which are not in the cache: this part of its bytes.
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
  // Whether a run that is not there may be made.
  absl::Status CheckRoomForRun(absl::string_view owner) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Returns the run, and in `superseded` the one before, which is to be closed without the lock.
  // `is_new` as NamedRuns takes it.
  std::shared_ptr<Run> Open(const std::string& run_id, uint64_t incarnation,
                            const RunConfig& config, BackingStore* backing, bool is_new,
                            std::shared_ptr<Run>& superseded) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // 0 if none was.
  uint64_t LastDeleted(const std::string& run_id) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  // Evicts the least recently used sequence of any run; false if there is none.
  bool EvictOldest(Evict last) ABSL_LOCKS_EXCLUDED(mutex_);

  const Limits limits_;
  const Clock clock_;
  ByteBudget budget_;  // outlives the runs, as do the next two
  ByteBudget steps_budget_;
  ByteBudget inspection_budget_;

  mutable Mutex mutex_;
  std::map<std::string, Entry> runs_ ABSL_GUARDED_BY(mutex_);
  // Run id -> the last incarnation that was deleted.
  absl::flat_hash_map<std::string, uint64_t> deleted_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::pair<std::string, uint64_t>> deleted_in_order_ ABSL_GUARDED_BY(mutex_);
  NamedRuns named_ ABSL_GUARDED_BY(mutex_);
};

// InvalidArgument unless it is 1 to 256 bytes of [A-Za-z0-9._-].
absl::Status CheckRunId(absl::string_view id);

}  // namespace sis
