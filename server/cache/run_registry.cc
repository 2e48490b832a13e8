#include "server/cache/run_registry.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace sis {

absl::Status CheckRunId(absl::string_view id) {
  const bool plain = std::ranges::all_of(id, [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
  });
  if (!id.empty() && id.size() <= kMaxIdBytes && plain) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("run_id '", id.substr(0, kMaxIdBytes), "' (",
                                                 id.size(), " bytes) is not 1 to ", kMaxIdBytes,
                                                 " bytes of [A-Za-z0-9._-]"));
}

RunRegistry::RunRegistry(int64_t cache_bytes, Arena& arena, const Limits& limits, Clock clock)
    : arena_(arena), limits_(limits), clock_(std::move(clock)), budget_(cache_bytes) {}

absl::StatusOr<RunRegistry::Created> RunRegistry::Create(const std::string& run_id,
                                                         uint64_t incarnation,
                                                         const RunConfig& config,
                                                         BackingStore* backing) {
  if (absl::Status status = CheckRunId(run_id); !status.ok()) return status;
  if (absl::Status status = CheckRunConfig(config, limits_.max_top_k); !status.ok()) return status;

  // Streams may hold it for long, its memory must not wait for them. Nor do others wait while it is
  // freed.
  std::shared_ptr<Run> superseded;
  absl::Cleanup close = [&superseded] {
    if (superseded != nullptr) superseded->Close();
  };
  WriterLock lock(mutex_);
  std::shared_ptr<RunCounters> counters;
  if (const auto found = runs_.find(run_id); found != runs_.end()) {
    Run& present = *found->second;
    if (incarnation != 0 && incarnation < present.incarnation()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "run '", run_id, "' is at incarnation ", present.incarnation(), ", past ", incarnation));
    }
    if (incarnation == 0 || incarnation == present.incarnation()) {
      if (present.config() == config) return Created{found->second, false};
      return absl::AlreadyExistsError(absl::StrCat(
          "run '", run_id,
          "' is there with another config: ", FirstDifference(present.config(), config)));
    }
    counters = present.shared_counters();
    superseded = found->second;
  } else {
    if (static_cast<int>(runs_.size()) >= limits_.max_runs) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the server has ", runs_.size(), " runs, the most allowed"));
    }
    counters = std::make_shared<RunCounters>();
  }
  auto run = std::make_shared<Run>(run_id, std::max<uint64_t>(1, incarnation), config, limits_,
                                   arena_, budget_, std::move(counters), clock_, backing);
  runs_[run_id] = run;
  return Created{std::move(run), true};
}

absl::StatusOr<std::shared_ptr<Run>> RunRegistry::Find(const std::string& run_id,
                                                       uint64_t incarnation) const {
  ReaderLock lock(mutex_);
  const auto found = runs_.find(run_id);
  if (found == runs_.end()) {
    return absl::NotFoundError(
        absl::StrCat("run '", run_id.substr(0, kMaxIdBytes), "' is unknown"));
  }
  if (incarnation != 0 && incarnation != found->second->incarnation()) {
    return absl::FailedPreconditionError(absl::StrCat("run '", run_id, "' is at incarnation ",
                                                      found->second->incarnation(), ", not ",
                                                      incarnation));
  }
  return found->second;
}

std::vector<std::shared_ptr<Run>> RunRegistry::List() const {
  ReaderLock lock(mutex_);
  std::vector<std::shared_ptr<Run>> runs;
  runs.reserve(runs_.size());
  for (const auto& [id, run] : runs_) runs.push_back(run);
  return runs;
}

const ByteBudget* RunRegistry::Reclaim(Run& run, int64_t bytes, Evict last) {
  DropExpired();
  const ByteBudget& quota = run.budget();
  if (const int64_t lacking = quota.Lacking(bytes); run.EvictableBytes(lacking, last) < lacking) {
    return &quota;
  }
  int64_t lacking = budget_.Lacking(bytes);
  for (const std::shared_ptr<Run>& other : List()) lacking -= other->EvictableBytes(lacking, last);
  if (lacking > 0) return &budget_;

  // Others may be faster, with what was counted or with what is evicted here.
  while (quota.Lacking(bytes) > 0) {
    if (!run.EvictOldest(last)) return &quota;
  }
  while (budget_.Lacking(bytes) > 0) {
    if (!EvictOldest(last)) return &budget_;
  }
  return nullptr;
}

const ByteBudget* RunRegistry::MakeRoom(Run& run, int64_t bytes, Evict last) {
  if (run.budget().Lacking(bytes) > 0 || budget_.Lacking(bytes) > 0) {
    return Reclaim(run, bytes, last);
  }
  return EvictOldest(last) ? nullptr : &budget_;
}

bool RunRegistry::EvictOldest(Evict last) {
  for (const Evict which : {Evict::kRead, Evict::kUnread}) {
    if (which > last) break;
    std::shared_ptr<Run> oldest_run;
    absl::Time oldest = absl::InfiniteFuture();
    for (const std::shared_ptr<Run>& run : List()) {
      const std::optional<absl::Time> used = run->OldestEvictable(which);
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
  // What is charged and not in the arena is around it.
  arena_.SetAside(budget_.used() - arena_.used_bytes());
}

}  // namespace sis
