#include "server/cache/run_config.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/cache/limits.h"

namespace sis {
namespace {

absl::string_view Name(BlockEncoding encoding) {
  return encoding == BlockEncoding::kFloat32 ? "FLOAT32" : "FIXED16";
}

std::string OrUnset(const std::optional<uint64_t>& value) {
  return value.has_value() ? absl::StrCat(*value) : "unset";
}

}  // namespace

absl::Status CheckRunConfig(const RunConfig& config, int max_top_k) {
  if (config.vocabulary_size < 1 || config.vocabulary_size > kMaxVocabularySize) {
    return absl::InvalidArgumentError(absl::StrCat("config.vocabulary_size ",
                                                   config.vocabulary_size, " is not in [1, ",
                                                   kMaxVocabularySize, "]"));
  }
  const int largest_top_k = std::min(max_top_k, kMaxBlockSlots);
  if (config.top_k < 1 || config.top_k > static_cast<uint32_t>(largest_top_k)) {
    return absl::InvalidArgumentError(
        absl::StrCat("config.top_k ", config.top_k, " is not in [1, ", largest_top_k, "]"));
  }
  if (config.top_k > config.vocabulary_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("config.top_k ", config.top_k, " is above config.vocabulary_size ",
                     config.vocabulary_size, ": there are no more tokens to record"));
  }
  if (!(std::isfinite(config.time_to_live_seconds) && config.time_to_live_seconds >= 0)) {
    return absl::InvalidArgumentError(absl::StrCat("config.time_to_live_seconds ",
                                                   config.time_to_live_seconds,
                                                   " is not finite and at least 0"));
  }
  if (!(config.mass >= 0 && config.mass <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("config.mass ", config.mass, " is not in [0, 1]"));
  }
  for (const auto& [field, value] :
       {std::pair("task", &config.task), std::pair("algorithm", &config.algorithm),
        std::pair("model", &config.model), std::pair("owner", &config.owner)}) {
    if (value->size() <= kMaxIdBytes) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("config.", field, ": ", value->size(), " bytes, more than ", kMaxIdBytes));
  }
  return absl::OkStatus();
}

std::string FirstDifference(const RunConfig& a, const RunConfig& b) {
  std::string difference;
  const auto compare = [&](absl::string_view field, const auto& before, const auto& after) {
    if (!difference.empty() || before == after) return;
    difference = absl::StrCat(field, ": ", before, " -> ", after);
  };
  compare("seed", a.seed, b.seed);
  compare("vocabulary_size", a.vocabulary_size, b.vocabulary_size);
  compare("top_k", a.top_k, b.top_k);
  compare("time_to_live_seconds", a.time_to_live_seconds, b.time_to_live_seconds);
  compare("max_staleness", OrUnset(a.max_staleness), OrUnset(b.max_staleness));
  compare("byte_quota", a.byte_quota, b.byte_quota);
  compare("task", a.task, b.task);
  compare("algorithm", a.algorithm, b.algorithm);
  compare("model", a.model, b.model);
  compare("log_prob_encoding", Name(a.log_prob_encoding), Name(b.log_prob_encoding));
  compare("evict_unread", a.evict_unread, b.evict_unread);
  compare("owner", a.owner, b.owner);
  compare("mass", a.mass, b.mass);
  return difference;
}

}  // namespace sis
