// All runs of a server, and the bytes they share.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/cache/limits.h"
#include "server/cache/run.h"
#include "server/memory/arena.h"
#include "server/memory/byte_budget.h"
#include "server/threads/mutex.h"

namespace sis {

// Thread-safe. Lock order: RunRegistry, then Run.
class RunRegistry {
 public:
  // The arena must outlive the registry and every run it handed out.
  RunRegistry(int64_t cache_bytes, Arena& arena, const Limits& limits, Clock clock);

  struct Created {
    std::shared_ptr<Run> run;
    bool created;
  };
  // As CreateRun of the API. The backing store, if any, must outlive the calls of the run.
  absl::StatusOr<Created> Create(const std::string& run_id, uint64_t incarnation,
                                 const RunConfig& config, BackingStore* backing = nullptr)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The present incarnation if it is 0. NotFound, or FailedPrecondition for one that isn't present.
  absl::StatusOr<std::shared_ptr<Run>> Find(const std::string& run_id,
                                            uint64_t incarnation = 0) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  // By run id.
  std::vector<std::shared_ptr<Run>> List() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Tries to make room for so many bytes of the run: drops what is stale or expired, then evicts
  // least recently used sequences, of this run if its own quota is short, else of any: those of
  // Evict::kRead before what `last` adds; or none, if all of them would not do. Null if there may
  // be room now, else the budget that is short.
  const ByteBudget* Reclaim(Run& run, int64_t bytes, Evict last) ABSL_LOCKS_EXCLUDED(mutex_);
  // The same for a caller that did not get the bytes: if they are there, the arena did not have
  // them in one piece, and the least recently used sequence of any run goes.
  const ByteBudget* MakeRoom(Run& run, int64_t bytes, Evict last) ABSL_LOCKS_EXCLUDED(mutex_);

  // Drops what has expired, in all runs, and lets the arena make room for what is charged outside
  // of it. To be called now and then.
  void DropExpired() ABSL_LOCKS_EXCLUDED(mutex_);

  const ByteBudget& budget() const { return budget_; }

 private:
  // Evicts the least recently used sequence of any run; false if there is none.
  bool EvictOldest(Evict last) ABSL_LOCKS_EXCLUDED(mutex_);

  Arena& arena_;
  const Limits limits_;
  const Clock clock_;
  ByteBudget budget_;  // outlives the runs

  mutable Mutex mutex_;
  std::map<std::string, std::shared_ptr<Run>> runs_ ABSL_GUARDED_BY(mutex_);
};

// InvalidArgument unless it is 1 to 256 bytes of [A-Za-z0-9._-].
absl::Status CheckRunId(absl::string_view id);

}  // namespace sis
