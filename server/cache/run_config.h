// The config of a run: a checked v1::RunConfig.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "kernels/block/block.h"

namespace sis {

// v1::RunConfig documents the fields and their limits.
struct RunConfig {
  uint64_t seed = 0;
  uint32_t vocabulary_size = 0;
  uint32_t top_k = 0;
  double time_to_live_seconds = 0;  // 0: forever
  std::optional<uint64_t> max_staleness = {};
  uint64_t byte_quota = 0;  // 0: none
  std::string task = {};
  std::string algorithm = {};
  std::string model = {};
  BlockEncoding log_prob_encoding = BlockEncoding::kFixed16;
  bool evict_unread = false;
  // The identity that may use the run. Empty: only admins may.
  std::string owner = {};
  double mass = 0;

  friend bool operator==(const RunConfig&, const RunConfig&) = default;
};

// Returns InvalidArgument, naming the field and its value, if a field is out of range.
absl::Status CheckRunConfig(const RunConfig& config, int max_top_k);

// Returns the first field that differs, as "seed: 1 -> 2"; empty if none does.
std::string FirstDifference(const RunConfig& a, const RunConfig& b);

}  // namespace sis
