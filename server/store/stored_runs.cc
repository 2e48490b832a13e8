#include "server/store/stored_runs.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/messages/cache_messages.h"

namespace sis {
namespace {

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

absl::StatusOr<RunRegistry::Created> StoredRuns::Create(const v1::CreateRunRequest& request) {
  const std::string& run_id = request.run_id();
  if (absl::Status status = CheckRunId(run_id); !status.ok()) return status;
  const absl::StatusOr<RunConfig> config = FromMessage(request.config());
  if (!config.ok()) return config.status();
  if (stored_ != nullptr) {
    if (absl::Status status = Learn(run_id); !status.ok()) return status;
  }
  absl::StatusOr<RunRegistry::Created> created =
      registry_.Create(run_id, request.incarnation(), *config, stored_);
  if (!created.ok() || stored_ == nullptr) return created;
  const uint64_t incarnation = created->run->incarnation();
  if (absl::Status status = Exchange(*created->run, created->run->policy_version()); !status.ok())
    return status;
  if (created->created) {
    behind_->Schedule("", [this, run_id, incarnation] {
      stored_->store().DropIncarnationsBefore(run_id, incarnation).IgnoreError();
    });
  }
  return created;
}

absl::StatusOr<std::shared_ptr<Run>> StoredRuns::Find(const v1::RunRef& ref) {
  absl::StatusOr<std::shared_ptr<Run>> run = registry_.Find(ref.run_id(), ref.incarnation());
  if (run.ok() || stored_ == nullptr || !CheckRunId(ref.run_id()).ok()) return run;
  if (absl::Status status = Learn(ref.run_id()); !status.ok()) return status;
  return registry_.Find(ref.run_id(), ref.incarnation());
}

absl::Status StoredRuns::Learn(const std::string& run_id) {
  const absl::StatusOr<StoredRun> there = stored_->store().GetRun(run_id);
  if (absl::IsNotFound(there.status())) return absl::OkStatus();
  return there.ok() ? Adopt(*there) : there.status();
}

absl::StatusOr<int64_t> StoredRuns::AdvanceVersion(Run& run, uint64_t version) {
  if (stored_ != nullptr && version > run.policy_version()) {
    if (absl::Status status = Exchange(run, version); !status.ok()) return status;
  }
  return run.AdvanceVersion(version);
}

absl::StatusOr<StoredRuns::Released> StoredRuns::Release(Run& run,
                                                         std::span<const SequenceName> names,
                                                         std::span<const uint64_t> lease_ids) {
  Released released;
  for (const SequenceName& name : names) released.sequences += run.Release(name);
  for (const uint64_t lease_id : lease_ids) released.leases += run.EndLease(lease_id);
  if (stored_ == nullptr) return released;
  const absl::StatusOr<int64_t> only_stored = stored_->FinishRelease(run, names);
  if (!only_stored.ok()) return only_stored.status();
  released.sequences += *only_stored;
  return released;
}

absl::Status StoredRuns::Exchange(const Run& run, uint64_t version) {
  const StoredRun own{.run_id = run.id(),
                      .incarnation = run.incarnation(),
                      .policy_version = version,
                      .config = ToMessage(run.config()).SerializeAsString()};
  const absl::StatusOr<StoredRun> there = stored_->store().PutRun(own);
  if (!there.ok()) return there.status();
  if (there->incarnation == own.incarnation) {
    const absl::StatusOr<RunConfig> config = ConfigOf(*there);
    if (!config.ok()) return config.status();
    if (*config != run.config()) {
      // Created here and elsewhere at the same time: the first stays.
      return absl::AlreadyExistsError(
          absl::StrCat("run '", run.id(), "' was created with another config elsewhere"));
    }
  }
  return *there == own ? absl::OkStatus() : Adopt(*there);
}

void StoredRuns::ExchangeAllBehind() {
  if (stored_ == nullptr || !stored_->store().shared() || exchanging_.exchange(true)) return;
  behind_->Schedule("", [this] {
    for (const std::shared_ptr<Run>& run : registry_.List()) {
      Exchange(*run, run->policy_version()).IgnoreError();
    }
    exchanging_ = false;
  });
}

absl::Status StoredRuns::Adopt(const StoredRun& there) {
  const absl::StatusOr<RunConfig> config = ConfigOf(there);
  if (!config.ok()) return config.status();
  absl::StatusOr<std::shared_ptr<Run>> run = registry_.Find(there.run_id);
  if (!run.ok() || (*run)->incarnation() < there.incarnation) {
    const absl::StatusOr<RunRegistry::Created> created =
        registry_.Create(there.run_id, there.incarnation, *config, stored_);
    if (absl::IsInvalidArgument(created.status())) return NoConfig(there);
    if (!created.ok()) return created.status();
    run = created->run;
  }
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
    for (const SequenceIdentity& dropped : sequences->dropped) {
      stored_->RemoveDroppedBehind(dropped);
    }
    ++recovered.runs;
    recovered.sequences += static_cast<int64_t>(sequences->present.size());
  }
  return recovered;
}

}  // namespace sis
