// The runs of a server, kept in line with the store's records of them.
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

// Thread-safe. Without a store (`stored` is null) what is in memory is all there is, and nothing
// waits; else calls wait for the store, but for those named ...Behind.
class StoredRuns {
 public:
  // Both must outlive the object, and the runs' calls.
  StoredRuns(RunRegistry& registry, StoredCache* stored);
  // Stores the steps once more: a clean end loses none.
  ~StoredRuns();

  RunRegistry& registry() const { return registry_; }
  StoredCache* stored() const { return stored_; }

  // As CreateRun of the API.
  absl::StatusOr<RunRegistry::Created> Create(const v1::CreateRunRequest& request,
                                              const Caller& caller = Caller());
  // In memory, or else in the store. Errors as of RunRegistry::Find.
  absl::StatusOr<std::shared_ptr<Run>> Find(const v1::RunRef& ref, const Caller& caller = Caller());

  // As AdvanceVersion of the API: stored first, or else nothing has changed. Returns how many
  // sequences were dropped.
  absl::StatusOr<int64_t> AdvanceVersion(Run& run, uint64_t version);

  // As Release of the API: returns how many were there. After an error of the store memory has
  // released what it had, and the call may be repeated.
  absl::StatusOr<int64_t> Release(Run& run, std::span<const SequenceName> names);

  // As DeleteRun of the API: whether it was there. What could not be removed from the store is
  // removed when the call is made again.
  absl::StatusOr<bool> Delete(const v1::RunRef& ref, const Caller& caller = Caller());
  // Deletes the runs that no call has named for longer than this.
  void ForgetIdle(absl::Duration unused);

  // If the store takes parts, stores the steps that have changed since the last call, which
  // Recover restores. Must be called now and then.
  void StoreStepsBehind();

  // With a store that is shared, takes over what other servers have stored of runs since. Must be
  // called every second.
  void TakeInShared();

  // Takes in all stored runs, with their steps; their sequences come when they are asked for.
  struct Recovered {
    int64_t runs = 0;
    // The runs some of whose stored steps are damaged and left out, and why. They stay until other
    // steps are stored in their place.
    std::map<std::string, std::string> damaged_steps = {};
  };
  absl::StatusOr<Recovered> Recover();

  // Returns the quarantined runs, whose stored record can't be used, with the reason. Record and
  // data stay until the record can be used again, DeleteRun removes it, or, if it is unreadable,
  // CreateRun replaces it.
  std::map<std::string, std::string> Quarantined() const ABSL_LOCKS_EXCLUDED(quarantined_mutex_);

 private:
  // Stores an incarnation that is to be opened, and takes over what is stored then: it, or a later
  // one.
  absl::Status Open(const std::string& run_id, const RunRegistry::Plan& plan)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(opening_);
  // Takes over what the store knows of the run, if it is newer.
  absl::Status Learn(const std::string& run_id);
  // Stores the run's policy version; takes over a newer record of it.
  absl::Status Exchange(const Run& run, uint64_t version);
  // Takes over the record if it is newer. Returns the error, which quarantines the run, if the
  // record can't be used.
  absl::Status Adopt(const StoredRun& there);
  // As Adopt; doesn't note what it finds.
  absl::Status TakeIn(const StoredRun& there);
  // Does what StoreStepsBehind says. Only the thread behind may call it.
  void StoreSteps();
  // Stores the steps to which something was added since `additions`. Returns false if it can't.
  bool StoreSteps(const Run& run, int64_t additions);
  // Returns DataLoss if some are damaged, after restoring the others.
  absl::Status RestoreSteps(const StoredRun& there);
  // Returns OK if the caller may open a later incarnation that replaces a quarantined run.
  absl::Status MakeWay(const std::string& run_id, const Caller& caller);
  // Records whether `status` quarantines the run. Returns `status`, with the run's id if so.
  absl::Status Noted(const std::string& run_id, absl::Status status)
      ABSL_LOCKS_EXCLUDED(quarantined_mutex_);

  RunRegistry& registry_;
  StoredCache* const stored_;
  Mutex opening_;                    // before all other locks; held while the store is waited for
  mutable Mutex quarantined_mutex_;  // a leaf
  std::map<std::string, std::string> quarantined_ ABSL_GUARDED_BY(quarantined_mutex_);
  // StepLedger::additions() of the steps that are stored, by run and incarnation. Only the thread
  // behind uses it.
  std::map<std::pair<std::string, uint64_t>, int64_t> stored_additions_;
  std::atomic<bool> storing_steps_ = false;
  std::optional<WorkerPool> behind_;  // with a store; destroyed first: does what is waiting
};

}  // namespace sis
