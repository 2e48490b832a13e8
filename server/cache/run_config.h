// How a run is set up: v1::RunConfig, checked, as the cache uses it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "server/cache/page.h"

namespace sis {

// What each field means, and its limits, says v1::RunConfig.
struct RunConfig {
  uint64_t seed = 0;
  uint32_t vocabulary_size = 0;
  uint32_t top_k = 0;
  double time_to_live_seconds = 0;  // 0: for ever
  std::optional<uint64_t> max_staleness = {};
  uint64_t byte_quota = 0;  // 0: none
  std::string task = {};
  std::string algorithm = {};
  std::string model = {};
  LogProbEncoding log_prob_encoding = LogProbEncoding::kFixed12;
  bool evict_unread = false;
  // The identity that may use the run; empty: nobody but who may use all.
  std::string owner = {};
  double mass = 0;

  friend bool operator==(const RunConfig&, const RunConfig&) = default;

  // Whether sets are cut where they reach `mass`.
  bool cuts_sets() const { return mass > 0 && mass < 1; }
  // How the run's records lie in memory.
  RecordFormat record_format() const {
    return {.encoding = log_prob_encoding,
            .slots = static_cast<int>(top_k),
            .vocabulary_size = static_cast<int32_t>(vocabulary_size),
            .page_version = cuts_sets() || top_k > kMaxTopKOfByteRanks ? PageVersion::kRagged
                                                                       : PageVersion::kFixed};
  }
};

// InvalidArgument names the field that is out of range, and its value.
absl::Status CheckRunConfig(const RunConfig& config, int max_top_k);
// The same, and what is asked only of a run that isn't there yet: those that are stay as they are.
absl::Status CheckNewRunConfig(const RunConfig& config, int max_top_k);

// The first field that differs, as "seed: 1 -> 2"; empty if none does.
std::string FirstDifference(const RunConfig& a, const RunConfig& b);

}  // namespace sis
