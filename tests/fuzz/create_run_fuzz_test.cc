// Any bytes as a CreateRun: a run within the limits whose configuration is stored as it is, and
// which the same request finds again; or an error, and no run.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "absl/time/clock.h"
#include "server/cache/run_registry.h"
#include "server/messages/cache_messages.h"
#include "server/store/stored_runs.h"

namespace sis {
namespace {

constexpr Limits kLimits = {.max_top_k = 20, .max_runs = 2};

void Require(bool condition) {
  if (!condition) std::abort();
}

std::vector<RunDescription> Describe(const RunRegistry& registry) {
  std::vector<RunDescription> runs;
  for (const std::shared_ptr<Run>& run : registry.List()) runs.push_back(run->Describe());
  return runs;
}

void RequireWithinLimits(const RunConfig& config) {
  Require(config.vocabulary_size >= 1 && config.vocabulary_size <= kMaxVocabularySize);
  Require(config.top_k >= 1 && config.top_k <= 20 && config.top_k <= config.vocabulary_size);
  Require(std::isfinite(config.time_to_live_seconds) && config.time_to_live_seconds >= 0);
  for (const std::string& label : {config.task, config.algorithm, config.model, config.owner}) {
    Require(label.size() <= static_cast<size_t>(kMaxIdBytes));
  }
}

void Check(const v1::CreateRunRequest& request) {
  RunRegistry registry(1 << 20, kLimits, absl::Now);
  StoredRuns runs(registry, nullptr);
  v1::CreateRunRequest earlier;
  earlier.set_run_id("run");
  earlier.set_incarnation(5);
  earlier.mutable_config()->set_vocabulary_size(10);
  earlier.mutable_config()->set_top_k(2);
  Require(runs.Create(earlier).ok());
  const std::vector<RunDescription> before = Describe(registry);

  const absl::StatusOr<RunRegistry::Created> created = runs.Create(request);
  if (!created.ok()) {
    Require(!created.status().message().empty());
    Require(Describe(registry) == before);
    return;
  }
  Require(created->run->id() == request.run_id() && CheckRunId(request.run_id()).ok());
  Require(request.incarnation() == 0 || created->run->incarnation() == request.incarnation());
  const RunConfig config = created->run->Describe().config;
  RequireWithinLimits(config);
  const absl::StatusOr<RunConfig> asked = FromMessage(request.config());
  Require(asked.ok() && *asked == config);
  const absl::StatusOr<RunConfig> stored = FromMessage(ToMessage(config));
  Require(stored.ok() && *stored == config);

  const std::vector<RunDescription> after = Describe(registry);
  const absl::StatusOr<RunRegistry::Created> again = runs.Create(request);
  Require(again.ok() && again->run == created->run && !again->created);
  Require(Describe(registry) == after);
}

}  // namespace
}  // namespace sis

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sis::v1::CreateRunRequest request;
  if (request.ParseFromArray(data, static_cast<int>(size))) sis::Check(request);
  return 0;
}
