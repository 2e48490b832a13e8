#include "server/cache/run_registry.h"

#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace sis {
namespace {

absl::Status CheckRunId(const std::string& id) {
  const bool plain = std::ranges::all_of(id, [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
  });
  if (!id.empty() && id.size() <= kMaxIdBytes && plain) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("run_id '", id.substr(0, kMaxIdBytes), "' (",
                                                 id.size(), " bytes) is not 1 to ", kMaxIdBytes,
                                                 " bytes of [A-Za-z0-9._-]"));
}

absl::Status CheckLabel(absl::string_view field, const std::string& value) {
  if (value.size() <= kMaxIdBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("config.", field, ": ", value.size(), " bytes, more than ", kMaxIdBytes));
}

// The first field that differs, as "seed: 1 -> 2".
std::string FirstDifference(const v1::RunConfig& a, const v1::RunConfig& b) {
  google::protobuf::util::MessageDifferencer differencer;
  std::string report;
  differencer.ReportDifferencesToString(&report);
  differencer.Compare(a, b);
  return report.substr(0, report.find('\n'));
}

}  // namespace

RunRegistry::RunRegistry(int64_t cache_bytes, Arena& arena, const Limits& limits, Metrics& metrics,
                         Clock clock, SequenceStore* store)
    : arena_(arena),
      limits_(limits),
      metrics_(metrics),
      clock_(std::move(clock)),
      budget_(cache_bytes),
      room_queue_(*this, limits.append_patience, clock_),
      stored_(store != nullptr && store->durable()
                  ? std::make_unique<StoredCache>(*store, *this, clock_)
                  : nullptr) {}

absl::Status RunRegistry::CheckConfig(const v1::RunConfig& config) const {
  if (config.vocabulary_size() < 1 || config.vocabulary_size() > kMaxVocabularySize) {
    return absl::InvalidArgumentError(absl::StrCat("config.vocabulary_size ",
                                                   config.vocabulary_size(), " is not in [1, ",
                                                   kMaxVocabularySize, "]"));
  }
  if (config.top_k() < 1 || config.top_k() > static_cast<uint32_t>(limits_.max_top_k)) {
    return absl::InvalidArgumentError(
        absl::StrCat("config.top_k ", config.top_k(), " is not in [1, ", limits_.max_top_k, "]"));
  }
  if (!(std::isfinite(config.time_to_live_seconds()) && config.time_to_live_seconds() >= 0)) {
    return absl::InvalidArgumentError(absl::StrCat("config.time_to_live_seconds ",
                                                   config.time_to_live_seconds(),
                                                   " is not finite and at least 0"));
  }
  if (!v1::LogProbEncoding_IsValid(config.log_prob_encoding())) {
    return absl::InvalidArgumentError(absl::StrCat("config.log_prob_encoding ",
                                                   static_cast<int>(config.log_prob_encoding()),
                                                   " is not an encoding"));
  }
  for (const auto& [field, value] :
       {std::pair("task", &config.task()), std::pair("algorithm", &config.algorithm()),
        std::pair("model", &config.model())}) {
    if (absl::Status status = CheckLabel(field, *value); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<RunRegistry::Created> RunRegistry::CreateInMemory(
    const v1::CreateRunRequest& request) {
  if (absl::Status status = CheckRunId(request.run_id()); !status.ok()) return status;
  if (absl::Status status = CheckConfig(request.config()); !status.ok()) return status;
  v1::RunConfig config = request.config();
  if (config.log_prob_encoding() == v1::LOG_PROB_ENCODING_UNSPECIFIED) {
    config.set_log_prob_encoding(v1::FIXED12);
  }

  // Streams may hold it for long, its memory must not wait for them. Nor do others wait while it is
  // freed.
  std::shared_ptr<Run> superseded;
  absl::Cleanup close = [&superseded] {
    if (superseded != nullptr) superseded->Close();
  };
  WriterLock lock(mutex_);
  const auto found = runs_.find(request.run_id());
  std::shared_ptr<RunMetrics> metrics;
  if (found != runs_.end()) {
    Run& present = *found->second;
    if (request.incarnation() != 0 && request.incarnation() < present.incarnation()) {
      return absl::FailedPreconditionError(
          absl::StrCat("run '", request.run_id(), "' is at incarnation ", present.incarnation(),
                       ", past ", request.incarnation()));
    }
    if (request.incarnation() == 0 || request.incarnation() == present.incarnation()) {
      const std::string difference = FirstDifference(present.config(), config);
      if (!difference.empty()) {
        return absl::AlreadyExistsError(absl::StrCat(
            "run '", request.run_id(), "' is there with another config: ", difference));
      }
      return Created{found->second, false};
    }
    metrics = present.shared_metrics();
    superseded = found->second;
  } else {
    if (static_cast<int>(runs_.size()) >= limits_.max_runs) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the server has ", runs_.size(), " runs, the most allowed"));
    }
    metrics = std::make_shared<RunMetrics>(metrics_, request.run_id());
  }
  const uint64_t incarnation = std::max<uint64_t>(1, request.incarnation());
  metrics->Describe(incarnation, config);
  auto run = std::make_shared<Run>(request.run_id(), incarnation, std::move(config), limits_,
                                   arena_, budget_, std::move(metrics), clock_, stored_.get());
  runs_[request.run_id()] = run;
  return Created{std::move(run), true};
}

absl::StatusOr<std::shared_ptr<Run>> RunRegistry::Find(const v1::RunRef& ref) const {
  ReaderLock lock(mutex_);
  const auto found = runs_.find(ref.run_id());
  if (found == runs_.end()) {
    return absl::NotFoundError(
        absl::StrCat("run '", ref.run_id().substr(0, kMaxIdBytes), "' is unknown"));
  }
  if (ref.incarnation() != 0 && ref.incarnation() != found->second->incarnation()) {
    return absl::FailedPreconditionError(absl::StrCat("run '", ref.run_id(), "' is at incarnation ",
                                                      found->second->incarnation(), ", not ",
                                                      ref.incarnation()));
  }
  return found->second;
}

absl::StatusOr<RunRegistry::Created> RunRegistry::Create(const v1::CreateRunRequest& request) {
  if (stored_ == nullptr) return CreateInMemory(request);
  if (absl::Status status = CheckRunId(request.run_id()); !status.ok()) return status;
  if (absl::Status status = Learn(request.run_id()); !status.ok()) return status;
  absl::StatusOr<Created> created = CreateInMemory(request);
  if (!created.ok()) return created;
  const Run& run = *created->run;
  if (absl::Status status = Exchange(run); !status.ok()) return status;
  if (created->created) stored_->DropIncarnationsBehind(run.id(), run.incarnation());
  return created;
}

absl::StatusOr<std::shared_ptr<Run>> RunRegistry::FindOrLearn(const v1::RunRef& ref) {
  absl::StatusOr<std::shared_ptr<Run>> run = Find(ref);
  if (run.ok() || stored_ == nullptr || !CheckRunId(ref.run_id()).ok()) return run;
  if (absl::Status status = Learn(ref.run_id()); !status.ok()) return status;
  return Find(ref);
}

absl::Status RunRegistry::Learn(const std::string& run_id) {
  const absl::StatusOr<StoredRun> stored = stored_->store().GetRun(run_id);
  if (absl::IsNotFound(stored.status())) return absl::OkStatus();
  return stored.ok() ? Adopt(*stored) : stored.status();
}

absl::Status RunRegistry::Exchange(const Run& run) {
  const StoredRun own{.run_id = run.id(),
                      .incarnation = run.incarnation(),
                      .policy_version = run.policy_version(),
                      .config = run.config().SerializeAsString()};
  const absl::StatusOr<StoredRun> there = stored_->store().PutRun(own);
  if (!there.ok()) return there.status();
  if (there->incarnation == own.incarnation && there->config != own.config) {
    // Created here and elsewhere at the same time: the first stays.
    return absl::AlreadyExistsError(
        absl::StrCat("run '", run.id(), "' was created with another config elsewhere"));
  }
  return Adopt(*there);
}

void RunRegistry::ExchangeRuns() {
  for (const std::shared_ptr<Run>& run : List()) Exchange(*run).IgnoreError();
}

absl::Status RunRegistry::Adopt(const StoredRun& stored) {
  v1::RunConfig config;
  if (!config.ParseFromString(stored.config) || !CheckConfig(config).ok()) {
    return absl::DataLossError(
        absl::StrCat("the stored config of run '", stored.run_id, "' is none"));
  }
  v1::RunRef ref;
  ref.set_run_id(stored.run_id);
  absl::StatusOr<std::shared_ptr<Run>> run = Find(ref);
  if (!run.ok() || (*run)->incarnation() < stored.incarnation) {
    v1::CreateRunRequest request;
    request.set_run_id(stored.run_id);
    request.set_incarnation(stored.incarnation);
    *request.mutable_config() = std::move(config);
    const absl::StatusOr<Created> created = CreateInMemory(request);
    if (!created.ok()) return created.status();
    run = created->run;
  }
  const bool newer = (*run)->incarnation() == stored.incarnation &&
                     (*run)->policy_version() < stored.policy_version;
  return newer ? (*run)->AdvanceVersion(stored.policy_version).status() : absl::OkStatus();
}

absl::StatusOr<RunRegistry::Recovered> RunRegistry::Recover() {
  Recovered recovered;
  if (stored_ == nullptr) return recovered;
  const absl::StatusOr<std::vector<StoredRun>> runs = stored_->store().ListRuns();
  if (!runs.ok()) return runs.status();
  for (const StoredRun& run : *runs) {
    if (absl::Status status = Adopt(run); !status.ok()) return status;
    const absl::StatusOr<std::vector<SequenceIdentity>> sequences =
        stored_->store().ListSequences(run.run_id, run.incarnation);
    if (!sequences.ok()) return sequences.status();
    ++recovered.runs;
    recovered.sequences += static_cast<int64_t>(sequences->size());
  }
  return recovered;
}

std::vector<std::shared_ptr<Run>> RunRegistry::List() const {
  ReaderLock lock(mutex_);
  std::vector<std::shared_ptr<Run>> runs;
  runs.reserve(runs_.size());
  for (const auto& [id, run] : runs_) runs.push_back(run);
  return runs;
}

const ByteBudget* RunRegistry::Reclaim(Run& run, int64_t bytes) {
  DropExpired();
  const ByteBudget& quota = run.budget();
  if (const int64_t lacking = quota.Lacking(bytes); run.EvictableBytes(lacking) < lacking) {
    return &quota;
  }
  int64_t lacking = budget_.Lacking(bytes);
  for (const std::shared_ptr<Run>& other : List()) lacking -= other->EvictableBytes(lacking);
  if (lacking > 0) return &budget_;

  // Others may be faster, with what was counted or with what is evicted here.
  while (quota.Lacking(bytes) > 0) {
    if (!run.EvictOldest()) return &quota;
  }
  while (budget_.Lacking(bytes) > 0) {
    if (!EvictOldest()) return &budget_;
  }
  return nullptr;
}

bool RunRegistry::EvictOldest() {
  std::shared_ptr<Run> oldest_run;
  absl::Time oldest = absl::InfiniteFuture();
  for (const std::shared_ptr<Run>& run : List()) {
    const std::optional<absl::Time> used = run->OldestEvictable();
    if (used.has_value() && *used < oldest) {
      oldest = *used;
      oldest_run = run;
    }
  }
  return oldest_run != nullptr && oldest_run->EvictOldest();
}

void RunRegistry::DropExpired() {
  for (const std::shared_ptr<Run>& run : List()) run->DropExpired();
  // What is charged and not in the arena is around it.
  arena_.SetAside(budget_.used() - arena_.used_bytes());
}

void RunRegistry::PublishState() {
  for (const std::shared_ptr<Run>& run : List()) run->PublishState();
  metrics_.SetCacheBytes(budget_.used());
  metrics_.SetWaitingAppends(room_queue_.size());
}

}  // namespace sis
