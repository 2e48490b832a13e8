#include "server/store/stored_runs.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/messages/cache_messages.h"

namespace sis {
namespace {

// Sequences about which the store is asked at a time, to learn what other servers have released: of
// all runs together, so that it costs the store some 1000 small reads a second however much there
// is; but so many of each.
constexpr size_t kAsked = 1024;
constexpr size_t kLeastAsked = 16;

absl::Status NoConfig(const StoredRun& there) {
  return absl::DataLossError(absl::StrCat("the stored config of run '", there.run_id, "' is none"));
}

absl::StatusOr<RunConfig> ConfigOf(const StoredRun& there) {
  v1::RunConfig message;
  if (!message.ParseFromString(there.config)) return NoConfig(there);
  absl::StatusOr<RunConfig> config = FromMessage(message);
  return config.ok() ? config : NoConfig(there);
}

}  // namespace

StoredRuns::StoredRuns(RunRegistry& registry, StoredCache* stored)
    : registry_(registry), stored_(stored) {
  if (stored_ != nullptr) behind_.emplace(1);
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
  const absl::Status learned = Learn(run_id);
  const absl::StatusOr<RunRegistry::Plan> plan =
      registry_.PlanToCreate(run_id, request.incarnation(), *config, caller);
  // What is present is stored: clients that open it again need not wait for a store that is down.
  const bool is_present = plan.ok() && plan->present != nullptr;
  if (!learned.ok() && !(is_present && absl::IsUnavailable(learned))) return learned;
  if (!plan.ok()) return plan.status();

  // The store decides between two that create it at the same time.
  if (plan->present == nullptr) {
    const StoredRun own{.run_id = run_id,
                        .incarnation = plan->incarnation,
                        .config = ToMessage(plan->config).SerializeAsString()};
    const absl::StatusOr<StoredRun> there = stored_->store().PutRun(own);
    if (!there.ok()) return there.status();
    if (absl::Status status = Adopt(*there); !status.ok()) return status;
    behind_->Schedule("", [this, run_id, incarnation = there->incarnation] {
      stored_->store().DropIncarnationsBefore(run_id, incarnation).IgnoreError();
    });
  }
  absl::StatusOr<RunRegistry::Created> created =
      registry_.Create(run_id, request.incarnation(), *config, stored_, caller);
  if (created.ok()) created->created = plan->present == nullptr;
  return created;
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
  if (!there.ok()) return there.status();
  if (ref.incarnation() != 0 && ref.incarnation() != there->incarnation) return false;
  if (!there->deleted() && !caller.uses_all_runs) {
    const absl::StatusOr<RunConfig> config = ConfigOf(*there);
    if (!config.ok()) return config.status();
    if (!caller.MayUseRunOf(config->owner)) return false;
  }
  const absl::StatusOr<StoredRun> deleted = DeleteStored(run_id, there->incarnation);
  if (!deleted.ok()) return deleted.status();
  if (absl::Status status = Adopt(*deleted); !status.ok()) return status;
  return !there->deleted();
}

absl::StatusOr<StoredRun> StoredRuns::DeleteStored(const std::string& run_id,
                                                   uint64_t incarnation) {
  SequenceStore& store = stored_->store();
  const absl::StatusOr<StoredRun> there =
      store.PutRun({.run_id = run_id, .incarnation = incarnation});
  if (!there.ok()) return there.status();
  absl::Status removed = store.DropIncarnationsBefore(run_id, incarnation + 1);
  if (!removed.ok()) return removed;
  return there;
}

void StoredRuns::ForgetIdle(absl::Duration unused) {
  for (const std::shared_ptr<Run>& run : registry_.Idle(unused)) {
    if (stored_ != nullptr && stored_->store().shared()) {
      registry_.Forget(*run);
      continue;
    }
    v1::RunRef ref;
    ref.set_run_id(run->id());
    ref.set_incarnation(run->incarnation());
    Delete(ref).status().IgnoreError();  // tried again, as it is still idle then
  }
}

absl::StatusOr<std::shared_ptr<Run>> StoredRuns::Find(const v1::RunRef& ref, const Caller& caller) {
  absl::StatusOr<std::shared_ptr<Run>> run =
      registry_.Find(ref.run_id(), ref.incarnation(), caller);
  if (run.ok() || stored_ == nullptr || !CheckRunId(ref.run_id()).ok()) return run;
  if (absl::Status status = Learn(ref.run_id()); !status.ok()) return status;
  return registry_.Find(ref.run_id(), ref.incarnation(), caller);
}

absl::Status StoredRuns::Learn(const std::string& run_id) {
  const absl::StatusOr<StoredRun> there = stored_->store().GetRun(run_id);
  if (absl::IsNotFound(there.status())) return absl::OkStatus();
  return there.ok() ? Adopt(*there) : there.status();
}

absl::StatusOr<int64_t> StoredRuns::AdvanceVersion(Run& run, uint64_t version) {
  const uint64_t current = run.policy_version();
  if (version > current && version - current > kMaxPolicyVersionJump) {
    return absl::InvalidArgumentError(absl::StrCat("policy_version ", version, " is more than ",
                                                   kMaxPolicyVersionJump,
                                                   " above the current one, ", current));
  }
  if (stored_ != nullptr && version > current) {
    if (absl::Status status = Exchange(run, version); !status.ok()) return status;
    // Others may have superseded or deleted it.
    absl::Status present = registry_.Find(run.id(), run.incarnation()).status();
    if (!present.ok()) return present;
  }
  return run.AdvanceVersion(version);
}

absl::StatusOr<StoredRuns::Released> StoredRuns::Release(Run& run,
                                                         std::span<const SequenceName> names,
                                                         std::span<const uint64_t> lease_ids) {
  Released released;
  for (const SequenceName& name : names) released.sequences += run.Release(name);
  std::vector<uint64_t> unknown;
  for (const uint64_t lease_id : lease_ids) {
    if (run.EndLease(lease_id)) {
      ++released.leases;
    } else {
      unknown.push_back(lease_id);
    }
  }
  if (stored_ == nullptr) return released;
  const absl::StatusOr<int64_t> only_stored = stored_->FinishRelease(run, names);
  if (!only_stored.ok()) return only_stored.status();
  released.sequences += *only_stored;
  if (!stored_->store().shared() || unknown.empty()) return released;
  const absl::Status told = stored_->EndLeasesElsewhere(run, unknown);
  if (!told.ok()) return told;
  return released;
}

absl::Status StoredRuns::Exchange(const Run& run, uint64_t version) {
  const StoredRun own{.run_id = run.id(),
                      .incarnation = run.incarnation(),
                      .policy_version = version,
                      .config = ToMessage(run.config()).SerializeAsString()};
  const absl::StatusOr<StoredRun> there = stored_->store().PutRun(own);
  if (!there.ok()) return there.status();
  return *there == own ? absl::OkStatus() : Adopt(*there);
}

void StoredRuns::ExchangeAllBehind() {
  if (stored_ == nullptr || !stored_->store().shared() || exchanging_.exchange(true)) return;
  behind_->Schedule("", [this] {
    const std::vector<std::shared_ptr<Run>> runs = registry_.List();
    const size_t each = std::max(kLeastAsked, kAsked / std::max<size_t>(1, runs.size()));
    for (const std::shared_ptr<Run>& run : runs) {
      Exchange(*run, run->policy_version()).IgnoreError();
      stored_->FollowReleases(*run, each);
    }
    exchanging_ = false;
  });
}

absl::Status StoredRuns::Adopt(const StoredRun& there) {
  if (there.deleted()) {
    registry_.Delete(there.run_id, there.incarnation);
    return absl::OkStatus();
  }
  const absl::StatusOr<RunConfig> config = ConfigOf(there);
  if (!config.ok()) return config.status();
  absl::StatusOr<std::shared_ptr<Run>> run =
      registry_.Restore(there.run_id, there.incarnation, *config, stored_);
  if (run.ok() && (*run)->incarnation() == there.incarnation && (*run)->config() != *config) {
    // The store lost the record, and somebody else has created the run since.
    registry_.Forget(**run);
    run = registry_.Restore(there.run_id, there.incarnation, *config, stored_);
  }
  if (absl::IsInvalidArgument(run.status())) return NoConfig(there);
  if (absl::IsFailedPrecondition(run.status())) return absl::OkStatus();  // deleted meanwhile
  if (!run.ok()) return run.status();
  if ((*run)->incarnation() != there.incarnation) return absl::OkStatus();
  if ((*run)->policy_version() >= there.policy_version) return absl::OkStatus();
  return (*run)->AdvanceVersion(there.policy_version).status();
}

absl::StatusOr<StoredRuns::Recovered> StoredRuns::Recover() {
  Recovered recovered;
  if (stored_ == nullptr) return recovered;
  const absl::StatusOr<std::vector<StoredRun>> runs = stored_->store().ListRuns();
  if (!runs.ok()) return runs.status();
  for (const StoredRun& run : *runs) {
    if (absl::Status status = Adopt(run); !status.ok()) return status;
    const absl::StatusOr<ListedSequences> sequences =
        stored_->store().ListSequences(run.run_id, run.incarnation);
    if (!sequences.ok()) return sequences.status();
    if (run.deleted()) {
      // What was still being written when it was deleted.
      if (sequences->present.empty() && sequences->dropped.empty()) continue;
      absl::Status removed = DeleteStored(run.run_id, run.incarnation).status();
      // On a full disk the next start does it.
      if (!removed.ok() && !absl::IsResourceExhausted(removed)) return removed;
      continue;
    }
    for (const SequenceIdentity& dropped : sequences->dropped) {
      stored_->RemoveDroppedBehind(dropped);
    }
    ++recovered.runs;
    recovered.sequences += static_cast<int64_t>(sequences->present.size());
  }
  return recovered;
}

}  // namespace sis
