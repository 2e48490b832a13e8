#include "server/store/stored_runs.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/messages/cache_messages.h"
#include "server/store/stored_step.h"

namespace sis {
namespace {

absl::Status NoConfig(absl::string_view why) {
  return absl::DataLossError(absl::StrCat("its stored config is invalid: ", why));
}

absl::StatusOr<RunConfig> ConfigOf(const StoredRun& there) {
  v1::RunConfig message;
  if (!message.ParseFromString(there.config)) return NoConfig("not a message");
  absl::StatusOr<RunConfig> config = FromMessage(message);
  return config.ok() ? config : NoConfig(config.status().message());
}

// Returns the owner; empty, which is nobody, if the record can't be read.
std::string OwnerOf(const StoredRun& there) {
  v1::RunConfig message;
  return message.ParseFromString(there.config) ? message.owner() : "";
}

// Returns the first incarnation that is neither superseded nor deleted.
uint64_t EndOfPast(const StoredRun& there) {
  return there.deleted() ? there.incarnation + 1 : there.incarnation;
}

// Returns true if `status` says that a stored record can't be used, rather than that the store
// failed for the moment.
bool IsQuarantined(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsFailedPrecondition(status);
}

}  // namespace

StoredRuns::StoredRuns(RunRegistry& registry, StoredCache* stored)
    : registry_(registry), stored_(stored) {
  if (stored_ != nullptr) behind_.emplace(1);
}

StoredRuns::~StoredRuns() {
  if (stored_ != nullptr) behind_->Schedule("", [this] { StoreSteps(); });
}

absl::StatusOr<RunRegistry::Created> StoredRuns::Create(const v1::CreateRunRequest& request,
                                                        const Caller& caller) {
  const std::string& run_id = request.run_id();
  if (absl::Status status = CheckRunId(run_id); !status.ok()) return status;
  const absl::StatusOr<RunConfig> config = FromMessage(request.config());
  if (!config.ok()) return config.status();
  if (stored_ == nullptr) {
    return registry_.Create(run_id, request.incarnation(), *config, nullptr, caller);
  }
  const auto make_plan = [&] {
    return registry_.PlanToCreate(run_id, request.incarnation(), *config, caller);
  };
  absl::Status learned = Learn(run_id);
  absl::StatusOr<RunRegistry::Plan> plan = make_plan();
  // A run in memory is stored already, so clients that open it again don't need the store.
  const bool is_present = plan.ok() && plan->present != nullptr;
  if (!is_present && IsQuarantined(learned)) learned = MakeWay(run_id, caller);
  const bool suffices = is_present && (absl::IsUnavailable(learned) || IsQuarantined(learned));
  if (!learned.ok() && !suffices) return learned;
  bool created = false;
  if (!is_present) {
    // Creates one run at a time, so that the limits of runs still hold once the run is stored.
    WriterLock lock(opening_);
    plan = make_plan();
    if (plan.ok() && plan->present == nullptr) {
      if (absl::Status status = Open(run_id, *plan); !status.ok()) return status;
      created = true;
      plan = make_plan();
    }
  }
  if (!plan.ok()) return plan.status();
  // NotFound if the run was deleted concurrently.
  absl::StatusOr<std::shared_ptr<Run>> run = registry_.Find(run_id, plan->incarnation, caller);
  if (!run.ok()) return run.status();
  return RunRegistry::Created{*std::move(run), created};
}

absl::Status StoredRuns::Open(const std::string& run_id, const RunRegistry::Plan& plan) {
  const StoredRun own{.run_id = run_id,
                      .incarnation = plan.incarnation,
                      .config = ToMessage(plan.config).SerializeAsString()};
  // Stores nothing that a restart could not read.
  if (const absl::StatusOr<RunConfig> config = ConfigOf(own);
      !config.ok() || *config != plan.config) {
    return absl::InvalidArgumentError("config: a label is not UTF-8");
  }
  // The store decides between two servers that create the run at the same time.
  const absl::StatusOr<StoredRun> there = stored_->store().PutRun(own);
  if (!there.ok()) return there.status();
  if (absl::Status status = Adopt(*there); !status.ok()) return status;
  if (plan.previous == 0) return absl::OkStatus();
  behind_->Schedule("", [this, run_id, first = plan.previous, last = there->incarnation] {
    // If this fails, the next start removes them.
    stored_->store().DropIncarnations(run_id, first, last).IgnoreError();
  });
  return absl::OkStatus();
}

absl::StatusOr<bool> StoredRuns::Delete(const v1::RunRef& ref, const Caller& caller) {
  const std::string& run_id = ref.run_id();
  if (absl::Status status = CheckRunId(run_id); !status.ok()) return status;
  if (stored_ == nullptr) {
    const absl::StatusOr<std::shared_ptr<Run>> run =
        registry_.Find(run_id, ref.incarnation(), caller);
    return run.ok() && registry_.Delete(run_id, (*run)->incarnation());
  }
  const absl::StatusOr<StoredRun> there = stored_->store().GetRun(run_id);
  if (absl::IsNotFound(there.status())) return false;
  const bool is_readable = !absl::IsDataLoss(there.status());
  if (!is_readable) {
    if (absl::Status may = MakeWay(run_id, caller); !may.ok()) return may;
  } else if (!there.ok()) {
    return there.status();
  } else {
    if (ref.incarnation() != 0 && ref.incarnation() != there->incarnation) return false;
    if (!there->deleted() && !caller.MayUseRunOf(OwnerOf(*there))) return false;
  }
  const uint64_t incarnation =
      is_readable ? there->incarnation : std::max<uint64_t>(1, ref.incarnation());
  Store& store = stored_->store();
  const absl::StatusOr<StoredRun> deleted =
      store.PutRun({.run_id = run_id, .incarnation = incarnation});
  if (!deleted.ok()) return deleted.status();
  // Earlier incarnations are removed already. The incarnation of an unreadable record is unknown.
  const auto [first, last] = is_readable ? std::pair(incarnation, incarnation + 1)
                                         : std::pair<uint64_t, uint64_t>(0, UINT64_MAX);
  if (absl::Status removed = store.DropIncarnations(run_id, first, last); !removed.ok()) {
    return removed;
  }
  if (absl::Status status = Adopt(*deleted); !status.ok()) return status;
  return !is_readable || !there->deleted();
}

void StoredRuns::ForgetIdle(absl::Duration unused) {
  if (stored_ != nullptr && stored_->store().shared()) NoteUsed(unused);
  for (const std::shared_ptr<Run>& run : registry_.Idle(unused)) {
    // Other servers send a use up to a quarter of the time after it (NoteUsed).
    if (stored_ != nullptr && stored_->IsUsedElsewhere(run->id(), 1.5 * unused)) continue;
    v1::RunRef ref;
    ref.set_run_id(run->id());
    ref.set_incarnation(run->incarnation());
    Delete(ref).status().IgnoreError();  // retried, as the run stays idle
  }
}

void StoredRuns::NoteUsed(absl::Duration unused) {
  // A run that is not idle for a period was used in it.
  const absl::Duration period = unused / 4;
  const absl::Time now = stored_->now();
  if (now - uses_noted_ < period) return;
  uses_noted_ = now;
  const std::vector<std::shared_ptr<Run>> idle = registry_.Idle(period);
  for (const std::shared_ptr<Run>& run : registry_.List()) {
    if (std::ranges::find(idle, run) == idle.end()) stored_->NoteUse(*run);
  }
}

absl::StatusOr<std::shared_ptr<Run>> StoredRuns::Find(const v1::RunRef& ref, const Caller& caller) {
  absl::StatusOr<std::shared_ptr<Run>> run =
      registry_.Find(ref.run_id(), ref.incarnation(), caller);
  if (run.ok() || stored_ == nullptr || !CheckRunId(ref.run_id()).ok()) return run;
  const absl::Status learned = Learn(ref.run_id());
  // Only admins see that a run is quarantined, because it may belong to somebody else.
  if (!learned.ok() && (caller.uses_all_runs || !IsQuarantined(learned))) return learned;
  return registry_.Find(ref.run_id(), ref.incarnation(), caller);
}

absl::Status StoredRuns::Learn(const std::string& run_id) {
  const absl::StatusOr<StoredRun> there = stored_->store().GetRun(run_id);
  if (there.ok()) return Adopt(*there);
  return Noted(run_id, absl::IsNotFound(there.status()) ? absl::OkStatus() : there.status());
}

absl::Status StoredRuns::MakeWay(const std::string& run_id, const Caller& caller) {
  const absl::StatusOr<StoredRun> there = stored_->store().GetRun(run_id);
  if (!there.ok() && !absl::IsDataLoss(there.status())) return there.status();
  // An unreadable record has no known owner.
  if (!caller.supersedes || !caller.MayUseRunOf(there.ok() ? OwnerOf(*there) : "")) {
    return absl::PermissionDeniedError(
        absl::StrCat("run_id '", run_id,
                     "' is taken by a stored run that is quarantined: an admin can delete it"));
  }
  if (!there.ok()) return absl::OkStatus();
  // A record that only this server's flags refuse stays.
  const absl::Status fits = TakeIn(*there);
  if (!absl::IsDataLoss(fits)) return fits;
  registry_.Delete(run_id, there->incarnation);
  return absl::OkStatus();
}

absl::Status StoredRuns::Noted(const std::string& run_id, absl::Status status) {
  WriterLock lock(quarantined_mutex_);
  if (status.ok()) quarantined_.erase(run_id);
  if (!IsQuarantined(status)) return status;
  quarantined_[run_id] = std::string(status.message());
  return absl::Status(status.code(),
                      absl::StrCat("run '", run_id, "' is quarantined: ", status.message()));
}

std::map<std::string, std::string> StoredRuns::Quarantined() const {
  ReaderLock lock(quarantined_mutex_);
  return quarantined_;
}

absl::StatusOr<int64_t> StoredRuns::AdvanceVersion(Run& run, uint64_t version,
                                                   const std::string& label) {
  if (label.size() > kMaxVersionLabelBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("label: ", label.size(), " bytes; must have at most ", kMaxVersionLabelBytes));
  }
  const uint64_t current = run.policy_version();
  if (version > current && version - current > kMaxPolicyVersionJump) {
    return absl::InvalidArgumentError(absl::StrCat("policy_version ", version, " is more than ",
                                                   kMaxPolicyVersionJump,
                                                   " above the current one, ", current));
  }
  VersionLabels labels = run.version_labels();
  const bool adds_label = !label.empty() && !labels.contains(version);
  if (stored_ != nullptr && (version > current || adds_label)) {
    if (!label.empty()) {
      if (absl::Status free = CheckVersionLabel(labels, version, label); !free.ok()) return free;
      AddVersionLabels({{version, label}}, labels);
    }
    absl::Status status = Exchange(run, std::max(version, current), std::move(labels));
    if (!status.ok()) return status;
    // Another call may have superseded or deleted the run.
    absl::Status present = registry_.Find(run.id(), run.incarnation()).status();
    if (!present.ok()) return present;
  }
  return run.AdvanceVersion(version, label);
}

absl::StatusOr<int64_t> StoredRuns::Release(Run& run, std::span<const SequenceName> names) {
  int64_t released = 0;
  for (const SequenceName& name : names) released += run.Release(name);
  if (stored_ == nullptr) return released;
  const absl::StatusOr<int64_t> only_stored = stored_->FinishRelease(run, names);
  if (!only_stored.ok()) return only_stored.status();
  return released + *only_stored;
}

absl::Status StoredRuns::Exchange(const Run& run, uint64_t version, VersionLabels labels) {
  const StoredRun own{.run_id = run.id(),
                      .incarnation = run.incarnation(),
                      .policy_version = version,
                      .config = ToMessage(run.config()).SerializeAsString(),
                      .labels = std::move(labels)};
  const absl::StatusOr<StoredRun> there = stored_->store().PutRun(own);
  if (!there.ok()) return there.status();
  return *there == own ? Noted(run.id(), absl::OkStatus()) : Adopt(*there);
}

void StoredRuns::StoreStepsBehind() {
  if (stored_ == nullptr || storing_steps_.exchange(true)) return;
  behind_->Schedule("", [this] {
    StoreSteps();
    storing_steps_ = false;
  });
}

void StoredRuns::StoreSteps() {
  // Steps are small, but the last space is needed to write drops.
  if (!stored_->store().CanPut().ok()) return;
  std::map<std::pair<std::string, uint64_t>, int64_t> before = std::exchange(stored_additions_, {});
  for (const std::shared_ptr<Run>& run : registry_.List()) {
    // Read before storing: later additions are then stored again.
    const int64_t additions = run->steps().additions();
    if (additions == 0) continue;
    const std::pair key(run->id(), run->incarnation());
    const int64_t stored = before[key];
    const bool is_stored = stored == additions || StoreSteps(*run, stored);
    stored_additions_[key] = is_stored ? additions : stored;
  }
}

bool StoredRuns::StoreSteps(const Run& run, int64_t additions) {
  std::map<uint16_t, std::string> by_slot;
  for (const StepLedger::Step& step : run.steps().AddedSince(additions)) {
    by_slot[static_cast<uint16_t>(step.number % StepLedger::kSumsKept)] = EncodeStep(step);
  }
  Store& store = stored_->store();
  if (!store.PutSteps(run.id(), run.incarnation(), by_slot).ok()) return false;
  // Another server that supersedes or deletes a run first writes the record, and then removes data.
  // So steps that were written too late are removed here.
  const absl::StatusOr<StoredRun> there = store.GetRun(run.id());
  if (there.ok() && run.incarnation() < EndOfPast(*there)) {
    store.DropIncarnations(run.id(), run.incarnation(), run.incarnation() + 1).IgnoreError();
  }
  return true;
}

absl::Status StoredRuns::RestoreSteps(const StoredRun& there) {
  const auto payloads = stored_->store().GetSteps(there.run_id, there.incarnation);
  if (!payloads.ok()) return payloads.status();
  absl::Status damaged;
  std::vector<StepLedger::Step> steps;
  for (const absl::StatusOr<std::string>& payload : *payloads) {
    absl::StatusOr<StepLedger::Step> step =
        payload.ok() ? ParseStep(*payload) : absl::StatusOr<StepLedger::Step>(payload.status());
    if (step.ok()) {
      steps.push_back(*std::move(step));
    } else {
      damaged = step.status();
    }
  }
  const absl::StatusOr<std::shared_ptr<Run>> run = registry_.Find(there.run_id, there.incarnation);
  if (run.ok()) (*run)->steps().Restore(std::move(steps));
  return damaged;
}

absl::Status StoredRuns::Adopt(const StoredRun& there) {
  return Noted(there.run_id, TakeIn(there));
}

absl::Status StoredRuns::TakeIn(const StoredRun& there) {
  if (there.deleted()) {
    registry_.Delete(there.run_id, there.incarnation);
    return absl::OkStatus();
  }
  const absl::StatusOr<RunConfig> config = ConfigOf(there);
  if (!config.ok()) return config.status();
  if (const int most = registry_.max_top_k(); config->top_k > static_cast<uint32_t>(most)) {
    return absl::FailedPreconditionError(
        absl::StrCat("its top_k is ", config->top_k, ", and --max_top_k=", most,
                     ": it is there again when the server is started with a larger one"));
  }
  absl::StatusOr<std::shared_ptr<Run>> run =
      registry_.Restore(there.run_id, there.incarnation, *config, stored_);
  if (absl::IsInvalidArgument(run.status())) return NoConfig(run.status().message());
  if (absl::IsFailedPrecondition(run.status())) return absl::OkStatus();  // deleted concurrently
  if (!run.ok()) return run.status();
  if ((*run)->incarnation() != there.incarnation) return absl::OkStatus();
  (*run)->AddVersionLabels(there.labels);
  if ((*run)->policy_version() >= there.policy_version) return absl::OkStatus();
  registry_.Find(there.run_id, there.incarnation)
      .status()
      .IgnoreError();  // counts as a use, so that the run isn't idle
  const absl::Status advanced = (*run)->AdvanceVersion(there.policy_version).status();
  return absl::IsFailedPrecondition(advanced) ? absl::OkStatus()
                                              : advanced;  // the run has advanced further
}

absl::StatusOr<StoredRuns::Recovered> StoredRuns::Recover() {
  Recovered recovered;
  if (stored_ == nullptr) return recovered;
  const absl::StatusOr<ListedRuns> listed = stored_->store().ListRuns();
  if (!listed.ok()) return listed.status();
  for (const auto& [run_id, why] : listed->unreadable) Noted(run_id, why).IgnoreError();
  for (const StoredRun& run : listed->runs) {
    if (run.deleted()) continue;  // Create reads the store anyway
    const absl::Status adopted = Adopt(run);
    if (IsQuarantined(adopted)) continue;
    if (!adopted.ok()) return adopted;
    ++recovered.runs;
    const absl::Status restored = RestoreSteps(run);
    if (absl::IsDataLoss(restored)) {
      recovered.damaged_steps[run.run_id] = std::string(restored.message());
    } else if (!restored.ok()) {
      return restored;
    }
  }
  return recovered;
}

void StoredRuns::TakeInShared() {
  if (stored_ == nullptr || !stored_->store().shared()) return;
  stored_->ExchangeNews();
  const absl::StatusOr<ListedRuns> listed = stored_->store().ListRuns();
  if (!listed.ok()) return;
  std::set<std::string> known;
  for (const std::shared_ptr<Run>& run : registry_.List()) known.insert(run->id());
  for (const auto& [run_id, why] : listed->unreadable) Noted(run_id, why).IgnoreError();
  for (const StoredRun& there : listed->runs) {
    if (there.deleted() && !known.contains(there.run_id)) continue;
    Adopt(there).IgnoreError();  // quarantined, or retried
  }
}

}  // namespace sis
