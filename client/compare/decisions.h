// What the service would decide, had one recording been made by the behaviour policy and the other
// by the current one: the same kernels, so the same bits.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/statusor.h"
#include "client/recorded/recorded_sets.h"
#include "kernels/decide/decide.h"
#include "kernels/numerics/sums.h"

namespace sis {

struct DecideOptions {
  // Use only the k most probable tokens; 0 means all that the behaviour recording lists, at most as
  // many as a record holds.
  uint32_t top_k = 0;
  // Of the run: keys the decisions. The sequences are called "0", "1", ...
  uint64_t seed = 0;
};

struct DecidedPosition {
  // kMissing if a file gives no log-prob of the token that the behaviour policy sampled. The other
  // numbers are then NaN, but for the uniform.
  Decision decision = Decision::kMissing;
  float log_ratio = std::numeric_limits<float>::quiet_NaN();
  float acceptance_probability = std::numeric_limits<float>::quiet_NaN();
  float log_envelope = std::numeric_limits<float>::quiet_NaN();
  float residual_mass = std::numeric_limits<float>::quiet_NaN();
  uint32_t uniform = 0;
  int64_t staleness = 0;  // policy versions behind, of a run's tokens; negative: ahead
};

struct Decisions {
  int top_k = 0;  // that was used: what was asked for, if the recording lists so many
  // Of each sequence its positions in common: up to and including the first where the sampled
  // tokens differ.
  std::vector<std::vector<DecidedPosition>> sequences;
  uint64_t positions = 0;
  uint64_t unscored = 0;  // of them; the sums are of the others
  Sums sums;
};

// A member of V_K that the current recording does not list raises the envelope as if it had the
// log-prob of the least probable token listed at that position (0 if none is), and adds nothing to
// the covered mass. InvalidArgument names sequence, field, position and value of a record that is
// not valid.
absl::StatusOr<Decisions> DecideAll(const Recording& behavior, const Recording& current,
                                    int32_t vocabulary_size, const DecideOptions& options);

}  // namespace sis
