#include "server/cache/run_registry.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "server/cache/inspection.h"

namespace sis {
namespace {

// Returns the quoted id, or only its size if it is too long for a message.
std::string Shown(absl::string_view id) {
  return id.size() <= kMaxIdBytes ? absl::StrCat("'", id, "'")
                                  : absl::StrCat("of ", id.size(), " bytes");
}

// Checks a new incarnation against the last one, current or deleted. 0: there was none.
absl::Status CheckJump(uint64_t incarnation, uint64_t last) {
  const uint64_t most = last == 0 ? kMaxFirstIncarnation : last + kMaxIncarnationJump;
  if (incarnation <= most || most < last) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("incarnation ", incarnation, " is above ", most,
                   last == 0 ? absl::StrCat(", the most that a new run begins with")
                             : absl::StrCat(": too far from ", last, ", the last one")));
}

}  // namespace

absl::Status CheckRunId(absl::string_view id) {
  const bool plain = std::ranges::all_of(id, [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
  });
  if (!id.empty() && id.size() <= kMaxIdBytes && plain) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("run_id ", Shown(id), " is not 1 to ", kMaxIdBytes, " bytes of [A-Za-z0-9._-]"));
}

// Closes a removed run at the end of the scope, after the lock is released. Streams may hold the
// run for long, but its memory must be freed now, and nobody may wait for the lock in the meantime.
struct RunRegistry::Closing {
  std::shared_ptr<Run> run = nullptr;
  ~Closing() {
    if (run != nullptr) run->Close();
  }
};

RunRegistry::RunRegistry(int64_t cache_bytes, const Limits& limits, Clock clock)
    : limits_(limits),
      clock_(std::move(clock)),
      budget_(cache_bytes),
      steps_budget_(cache_bytes / kStepsShare),
      inspection_budget_(limits.inspected_bytes),
      named_(limits.metric_runs) {}

absl::StatusOr<RunRegistry::Created> RunRegistry::Create(const std::string& run_id,
                                                         uint64_t incarnation,
                                                         const RunConfig& config,
                                                         BackingStore* backing,
                                                         const Caller& caller) {
  Closing superseded;
  WriterLock lock(mutex_);
  absl::StatusOr<Plan> plan = PlanLocked(run_id, incarnation, config, caller);
  if (!plan.ok()) return plan.status();
  if (plan->present != nullptr) {
    runs_.at(run_id).last_named = absl::ToUnixNanos(clock_());
    return Created{std::move(plan->present), false};
  }
  return Created{Open(run_id, plan->incarnation, plan->config, backing, true, superseded.run),
                 true};
}

absl::StatusOr<RunRegistry::Plan> RunRegistry::PlanToCreate(const std::string& run_id,
                                                            uint64_t incarnation,
                                                            const RunConfig& config,
                                                            const Caller& caller) const {
  ReaderLock lock(mutex_);
  return PlanLocked(run_id, incarnation, config, caller);
}

absl::StatusOr<RunRegistry::Plan> RunRegistry::PlanLocked(const std::string& run_id,
                                                          uint64_t incarnation,
                                                          const RunConfig& config,
                                                          const Caller& caller) const {
  if (absl::Status status = CheckRunId(run_id); !status.ok()) return status;
  if (absl::Status status = CheckRunConfig(config, limits_.max_top_k); !status.ok()) return status;
  if (!config.owner.empty() && !caller.MayUseRunOf(config.owner)) {
    return absl::PermissionDeniedError(absl::StrCat(
        "config.owner '", config.owner, "': only an admin creates runs for somebody else"));
  }
  RunConfig owned = config;
  if (incarnation == std::numeric_limits<uint64_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("incarnation ", incarnation, " leaves no room for a later one"));
  }
  if (const auto found = runs_.find(run_id); found != runs_.end()) {
    const std::shared_ptr<Run>& present = found->second.run;
    if (!caller.MayUseRunOf(present->config().owner)) {
      return absl::PermissionDeniedError(
          absl::StrCat("run_id '", run_id, "' is taken by somebody else"));
    }
    if (owned.owner.empty()) owned.owner = present->config().owner;
    if (incarnation != 0 && incarnation < present->incarnation()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "run '", run_id, "' is at incarnation ", present->incarnation(), ", past ", incarnation));
    }
    if (incarnation > present->incarnation()) {
      if (!caller.supersedes) {
        return absl::PermissionDeniedError(
            absl::StrCat("run '", run_id, "' is at incarnation ", present->incarnation(),
                         ", and only trainers may open a later one"));
      }
      if (absl::Status status = CheckJump(incarnation, present->incarnation()); !status.ok()) {
        return status;
      }
      return Plan{nullptr, incarnation, std::move(owned), present->incarnation()};
    }
    if (present->config() == owned) {
      return Plan{present, present->incarnation(), std::move(owned), present->incarnation()};
    }
    return absl::AlreadyExistsError(absl::StrCat(
        "run '", run_id,
        "' is there with another config: ", FirstDifference(present->config(), owned)));
  }
  if (owned.owner.empty()) {
    owned.owner = caller.identity;
    // The identity comes from outside, and may be too long for an owner.
    if (absl::Status status = CheckRunConfig(owned, limits_.max_top_k); !status.ok()) return status;
  }
  const uint64_t deleted = LastDeleted(run_id);
  if (incarnation != 0 && incarnation <= deleted) {
    return absl::FailedPreconditionError(absl::StrCat(
        "run '", run_id, "' was deleted at incarnation ", deleted, ", not before ", incarnation));
  }
  if (absl::Status status = CheckJump(incarnation, deleted); !status.ok()) return status;
  if (absl::Status status = CheckRoomForRun(owned.owner); !status.ok()) return status;
  return Plan{nullptr, incarnation == 0 ? deleted + 1 : incarnation, std::move(owned), deleted};
}

absl::Status RunRegistry::CheckRoomForRun(absl::string_view owner) const {
  if (static_cast<int>(runs_.size()) >= limits_.max_runs) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the server has ", runs_.size(), " runs, the most allowed (--max_runs)"));
  }
  if (owner.empty()) return absl::OkStatus();
  const auto owned = std::ranges::count_if(
      runs_, [&](const auto& entry) { return entry.second.run->config().owner == owner; });
  if (owned >= limits_.max_runs_per_owner) {
    return absl::ResourceExhaustedError(
        absl::StrCat("'", owner, "' has ", owned,
                     " runs, the most that one owner may have (--max_runs_per_owner)"));
  }
  return absl::OkStatus();
}

int64_t RunRegistry::runs_of_one_owner() const {
  ReaderLock lock(mutex_);
  absl::flat_hash_map<absl::string_view, int64_t> owned;
  int64_t most = 0;
  for (const auto& [run_id, entry] : runs_) {
    const std::string& owner = entry.run->config().owner;
    if (!owner.empty()) most = std::max(most, ++owned[owner]);
  }
  return most;
}

absl::StatusOr<std::shared_ptr<Run>> RunRegistry::Restore(const std::string& run_id,
                                                          uint64_t incarnation,
                                                          const RunConfig& config,
                                                          BackingStore* backing) {
  if (absl::Status status = CheckRunId(run_id); !status.ok()) return status;
  if (absl::Status status = CheckRunConfig(config, limits_.max_top_k); !status.ok()) return status;
  Closing superseded;
  WriterLock lock(mutex_);
  const auto found = runs_.find(run_id);
  if (found != runs_.end() && found->second.run->incarnation() >= incarnation) {
    return found->second.run;
  }
  if (incarnation <= LastDeleted(run_id)) {
    return absl::FailedPreconditionError(
        absl::StrCat("incarnation ", incarnation, " of run '", run_id, "' was deleted"));
  }
  return Open(run_id, incarnation, config, backing, false, superseded.run);
}

std::shared_ptr<Run> RunRegistry::Open(const std::string& run_id, uint64_t incarnation,
                                       const RunConfig& config, BackingStore* backing, bool is_new,
                                       std::shared_ptr<Run>& superseded) {
  Entry& entry = runs_[run_id];
  superseded = std::move(entry.run);
  // A later incarnation continues the counters.
  std::shared_ptr<RunCounters> counters =
      superseded == nullptr ? named_.Add(run_id, is_new, clock_()) : superseded->shared_counters();
  entry.run = std::make_shared<Run>(run_id, incarnation, config, limits_, budget_, steps_budget_,
                                    inspection_budget_, std::move(counters), clock_, backing);
  entry.last_named = absl::ToUnixNanos(clock_());
  return entry.run;
}

absl::StatusOr<std::shared_ptr<Run>> RunRegistry::Find(const std::string& run_id,
                                                       uint64_t incarnation,
                                                       const Caller& caller) const {
  ReaderLock lock(mutex_);
  const auto found = runs_.find(run_id);
  if (found == runs_.end() || !caller.MayUseRunOf(found->second.run->config().owner)) {
    return absl::NotFoundError(absl::StrCat("run ", Shown(run_id), " is unknown"));
  }
  const std::shared_ptr<Run>& run = found->second.run;
  if (incarnation != 0 && incarnation != run->incarnation()) {
    return absl::FailedPreconditionError(absl::StrCat("run '", run_id, "' is at incarnation ",
                                                      run->incarnation(), ", not ", incarnation));
  }
  found->second.last_named = absl::ToUnixNanos(clock_());
  return run;
}

bool RunRegistry::Delete(const std::string& run_id, uint64_t incarnation) {
  Closing deleted;
  WriterLock lock(mutex_);
  if (uint64_t& last = deleted_[run_id]; last < incarnation) {
    last = incarnation;
    deleted_in_order_.emplace_back(run_id, incarnation);
  }
  if (deleted_in_order_.size() > kDeletedRunsKept) {
    const auto& [oldest, at] = deleted_in_order_.front();
    if (LastDeleted(oldest) == at) deleted_.erase(oldest);
    deleted_in_order_.pop_front();
  }
  const auto found = runs_.find(run_id);
  if (found == runs_.end() || found->second.run->incarnation() > incarnation) return false;
  deleted.run = std::move(found->second.run);
  named_.Remove(run_id);
  runs_.erase(found);
  return true;
}

std::optional<RunTotals> RunRegistry::other_totals() const {
  ReaderLock lock(mutex_);
  if (named_.others() == nullptr) return std::nullopt;
  return named_.others()->totals();
}

void RunRegistry::ChooseNamed() {
  WriterLock lock(mutex_);
  named_.Choose(clock_());
}

uint64_t RunRegistry::LastDeleted(const std::string& run_id) const {
  const auto deleted = deleted_.find(run_id);
  return deleted == deleted_.end() ? 0 : deleted->second;
}

std::vector<std::shared_ptr<Run>> RunRegistry::Idle(absl::Duration unused) const {
  ReaderLock lock(mutex_);
  const absl::Time now = clock_();
  std::vector<std::shared_ptr<Run>> idle;
  for (const auto& [id, entry] : runs_) {
    if (now - absl::FromUnixNanos(entry.last_named) > unused) idle.push_back(entry.run);
  }
  return idle;
}

std::vector<std::shared_ptr<Run>> RunRegistry::List(const Caller& caller) const {
  ReaderLock lock(mutex_);
  std::vector<std::shared_ptr<Run>> runs;
  runs.reserve(runs_.size());
  for (const auto& [id, entry] : runs_) {
    if (caller.MayUseRunOf(entry.run->config().owner)) runs.push_back(entry.run);
  }
  return runs;
}

void RunRegistry::ShareInspection() {
  const std::vector<std::shared_ptr<Run>> runs = List();
  std::vector<Inspection*> lacking;
  for (const std::shared_ptr<Run>& run : runs) {
    if (run->inspection().lacks_room()) lacking.push_back(&run->inspection());
  }
  if (lacking.empty()) return;
  const int64_t share = limits_.inspected_bytes / Run::kInspectedShare;
  for (const std::shared_ptr<Run>& run : runs) {
    if (inspection_budget_.Lacking(share) == 0) break;
    run->ForgetAbandonedInspection();
  }
  if (inspection_budget_.Lacking(share) > 0) return;
  for (Inspection* inspection : lacking) inspection->TryAgain();
}

const ByteBudget* RunRegistry::MakeRoom(Run& run, int64_t bytes, Evict last) {
  DropExpired();
  const ByteBudget& quota = run.budget();
  if (const int64_t lacking = quota.Lacking(bytes); run.EvictableBytes(lacking, last) < lacking) {
    return &quota;
  }
  int64_t lacking = budget_.Lacking(bytes);
  for (const std::shared_ptr<Run>& any : List()) lacking -= any->EvictableBytes(lacking, last);
  if (lacking > 0) return &budget_;

  // Other threads may evict the counted sequences, or take the bytes that are freed here.
  while (quota.Lacking(bytes) > 0) {
    if (!run.EvictOldest(last)) return &quota;
  }
  while (budget_.Lacking(bytes) > 0) {
    if (!EvictOldest(last)) return &budget_;
  }
  return nullptr;
}

bool RunRegistry::EvictOldest(Evict last) {
  for (const Evict which : {Evict::kRead, Evict::kUnread}) {
    std::shared_ptr<Run> oldest_run;
    absl::Time oldest = absl::InfiniteFuture();
    for (const std::shared_ptr<Run>& run : List()) {
      const std::optional<absl::Time> used = run->OldestEvictable(which, last);
      if (used.has_value() && *used < oldest) {
        oldest = *used;
        oldest_run = run;
      }
    }
    if (oldest_run != nullptr) return oldest_run->EvictOldest(which);
  }
  return false;
}

void RunRegistry::DropExpired() {
  for (const std::shared_ptr<Run>& run : List()) run->DropExpired();
}

}  // namespace sis
