// How a run is set up: v1::RunConfig, checked, as the cache uses it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "kernels/block/block.h"

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
  BlockEncoding log_prob_encoding = BlockEncoding::kFixed16;
  bool evict_unread = false;
  // The identity that may use the run; empty: nobody but who may use all.
  std::string owner = {};
  double mass = 0;

  friend bool operator==(const RunConfig&, const RunConfig&) = default;

  // Whether sets are cut where they reach `mass`.
  bool cuts_sets() const { return mass > 0 && mass < 1; }
};

// InvalidArgument names the field that is out of range, and its value.
absl::Status CheckRunConfig(const RunConfig& config, int max_top_k);
// The same, and what is asked only of a run that isn't there yet: those that are stay as they are.
absl::Status CheckNewRunConfig(const RunConfig& config, int max_top_k);

// The first field that differs, as "seed: 1 -> 2"; empty if none does.
std::string FirstDifference(const RunConfig& a, const RunConfig& b);

}  // namespace sis
