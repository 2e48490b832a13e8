// The runs of a server, synchronised with the store's records.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/cache/caller.h"
#include "server/cache/run_registry.h"
#include "server/store/stored_cache.h"
#include "server/threads/mutex.h"
#include "server/threads/worker_pool.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// Thread-safe. Without a store (`stored` is null) all runs are in memory, and no call waits. With a
// store, calls wait for it, except those named ...Behind, which work in the background.
class StoredRuns {
 public:
  // Both must outlive the object and all calls of the runs.
  StoredRuns(RunRegistry& registry, StoredCache* stored);
  // Stores the steps, so that a clean shutdown loses none.
  ~StoredRuns();

  RunRegistry& registry() const { return registry_; }
  StoredCache* stored() const { return stored_; }

  // Implements CreateRun of the API.
  absl::StatusOr<RunRegistry::Created> Create(const v1::CreateRunRequest& request,
                                              const Caller& caller = Caller());
  // Finds a run in memory or in the store. Errors as in RunRegistry::Find.
  absl::StatusOr<std::shared_ptr<Run>> Find(const v1::RunRef& ref, const Caller& caller = Caller());

  // Implements AdvanceVersion of the API. Stores version and label first; if that fails, nothing
  // has changed. Returns the number of dropped sequences.
  absl::StatusOr<int64_t> AdvanceVersion(Run& run, uint64_t version, const std::string& label = "");

  // Implements Release of the API. Returns how many sequences existed. After an error of the store,
  // memory has released its sequences, and the call can be repeated.
  absl::StatusOr<int64_t> Release(Run& run, std::span<const SequenceName> names);

  // Implements DeleteRun of the API. Returns whether the run existed. If the store failed to remove
  // data, repeat the call.
  absl::StatusOr<bool> Delete(const v1::RunRef& ref, const Caller& caller = Caller());
  // Deletes the runs that no call has named for longer than `unused`, on any server of a shared
  // store. Must be called by one thread.
  void ForgetIdle(absl::Duration unused);

  // Stores the steps that have changed since the last call, unless the store is full. Recover
  // restores them. Must be called periodically.
  void StoreStepsBehind();

  // With a shared store, reads the run records that other servers have changed. Must be called
  // every second.
  void TakeInShared();

  // Restores all stored runs with their steps. Sequences are loaded when they are used.
  struct Recovered {
    int64_t runs = 0;
    // Runs with damaged stored steps, which were not restored, and the errors. Damaged steps stay
    // in the store until other steps replace them.
    std::map<std::string, std::string> damaged_steps = {};
  };
  absl::StatusOr<Recovered> Recover();

  // Returns the quarantined runs, whose stored record can't be used, with the reason. Record and
  // data stay until the record can be used again, DeleteRun removes it, or, if it is unreadable,
  // CreateRun replaces it.
  std::map<std::string, std::string> Quarantined() const ABSL_LOCKS_EXCLUDED(quarantined_mutex_);

 private:
  // Stores the planned incarnation, and opens the stored one: it, or a later one.
  absl::Status Open(const std::string& run_id, const RunRegistry::Plan& plan)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(opening_);
  // Reads the run's stored record, and takes it over if it is newer.
  absl::Status Learn(const std::string& run_id);
  // Stores the run's policy version and labels; takes over a newer record of it.
  absl::Status Exchange(const Run& run, uint64_t version, VersionLabels labels);
  // Takes over the record if it is newer. Returns the error, which quarantines the run, if the
  // record can't be used.
  absl::Status Adopt(const StoredRun& there);
  // Sends other servers which runs were used.
  void NoteUsed(absl::Duration unused);
  // Like Adopt, without recording quarantined runs.
  absl::Status TakeIn(const StoredRun& there);
  // Implements StoreStepsBehind. Only the background thread may call it.
  void StoreSteps();
  // Stores the steps to which something was added since `additions`. Returns false if it can't.
  bool StoreSteps(const Run& run, int64_t additions);
  // Restores the run's steps. Returns DataLoss if some are damaged, after restoring the others.
  absl::Status RestoreSteps(const StoredRun& there);
  // Returns OK if the caller may open a later incarnation that replaces a quarantined run.
  absl::Status MakeWay(const std::string& run_id, const Caller& caller);
  // Records whether `status` quarantines the run. Returns `status`, with the run's id if so.
  absl::Status Noted(const std::string& run_id, absl::Status status)
      ABSL_LOCKS_EXCLUDED(quarantined_mutex_);

  RunRegistry& registry_;
  StoredCache* const stored_;
  Mutex opening_;                    // before all other locks; held during calls of the store
  mutable Mutex quarantined_mutex_;  // a leaf
  std::map<std::string, std::string> quarantined_ ABSL_GUARDED_BY(quarantined_mutex_);
  // StepLedger::additions() of the stored steps, by run and incarnation. Only the background thread
  // uses it.
  std::map<std::pair<std::string, uint64_t>, int64_t> stored_additions_;
  std::atomic<bool> storing_steps_ = false;
  absl::Time uses_noted_ = absl::InfinitePast();  // only ForgetIdle uses it
  std::optional<WorkerPool> behind_;  // with a store; destroyed first, which runs all waiting work
};

}  // namespace sis
