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
#include "server/cache/limits.h"
#include "server/cache/room_queue.h"
#include "server/cache/run.h"
#include "server/cache/stored_cache.h"
#include "server/memory/arena.h"
#include "server/memory/byte_budget.h"
#include "server/metrics/metrics.h"
#include "server/threads/mutex.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// Thread-safe. Lock order: RunRegistry, then Run.
class RunRegistry {
 public:
  // arena, metrics and store must outlive the registry and every run it handed out. Null, or a
  // store that isn't durable: what leaves memory is gone.
  RunRegistry(int64_t cache_bytes, Arena& arena, const Limits& limits, Metrics& metrics,
              Clock clock, SequenceStore* store = nullptr);

  struct Created {
    std::shared_ptr<Run> run;
    bool created;
  };
  // As CreateRun of the API. Waits for the store, if there is one.
  absl::StatusOr<Created> Create(const v1::CreateRunRequest& request) ABSL_LOCKS_EXCLUDED(mutex_);
  // NotFound, or FailedPrecondition for an incarnation that isn't the present one.
  absl::StatusOr<std::shared_ptr<Run>> Find(const v1::RunRef& ref) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The same, but looks into the store for what isn't known here, and waits for that.
  absl::StatusOr<std::shared_ptr<Run>> FindOrLearn(const v1::RunRef& ref)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // By run id.
  std::vector<std::shared_ptr<Run>> List() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Tries to make room for so many bytes of the run: drops what is stale or expired, then evicts
  // least recently used sequences, of this run if its own quota is short, else of any; or none, if
  // all of them would not do. Null if there may be room now, else the budget that is short.
  const ByteBudget* Reclaim(Run& run, int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Evicts the least recently used sequence of any run; false if there is none. For who finds that
  // the bytes are there, but not in one piece of the arena.
  bool EvictOldest() ABSL_LOCKS_EXCLUDED(mutex_);

  // Null without a durable store.
  StoredCache* stored() const { return stored_.get(); }
  // Takes in all runs that the store can list; their sequences come when they are asked for.
  struct Recovered {
    int64_t runs = 0;
    int64_t sequences = 0;
  };
  absl::StatusOr<Recovered> Recover() ABSL_LOCKS_EXCLUDED(mutex_);
  // Tells the store the run's policy version; takes over a newer record of it.
  absl::Status Exchange(const Run& run) ABSL_LOCKS_EXCLUDED(mutex_);
  void ExchangeRuns() ABSL_LOCKS_EXCLUDED(mutex_);

  // Appends that Reclaim found no room for.
  RoomQueue& room_queue() { return room_queue_; }

  // Drops what has expired, in all runs, and lets the arena make room for what is charged outside
  // of it. To be called now and then.
  void DropExpired() ABSL_LOCKS_EXCLUDED(mutex_);
  // Brings the gauges up to date.
  void PublishState() ABSL_LOCKS_EXCLUDED(mutex_);

  const ByteBudget& budget() const { return budget_; }

 private:
  absl::Status CheckConfig(const v1::RunConfig& config) const;
  absl::StatusOr<Created> CreateInMemory(const v1::CreateRunRequest& request)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Takes over what the store knows of the run, if it is newer.
  absl::Status Learn(const std::string& run_id) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Adopt(const StoredRun& stored) ABSL_LOCKS_EXCLUDED(mutex_);

  Arena& arena_;
  const Limits limits_;
  Metrics& metrics_;
  const Clock clock_;
  ByteBudget budget_;  // outlives the runs
  RoomQueue room_queue_;

  mutable Mutex mutex_;
  std::map<std::string, std::shared_ptr<Run>> runs_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<StoredCache> stored_;  // destroyed first
};

}  // namespace sis
