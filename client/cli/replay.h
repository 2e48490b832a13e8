// Replays two recordings through the service: one as the behaviour policy, the other as the current
// one.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "client/api/client.h"
#include "client/cli/recorded_sets.h"

namespace sis {

struct ReplayOptions {
  // Record only the k most probable tokens; 0 means all that the behaviour recording lists.
  uint32_t top_k = 0;
  // Of the run: keys the decisions.
  uint64_t seed = 0;
};

struct ReplaySummary {
  // Up to and including the first where the sampled tokens differ.
  uint64_t positions = 0;
  // Of them, those without a ratio: a file gives no log-prob of the token that the behaviour policy
  // sampled. All numbers below are of the others, the scored ones.
  uint64_t unscored = 0;
  uint64_t accepted = 0;
  uint64_t rejected = 0;
  uint64_t outside_top_k = 0;
  // Sums, nats.
  double d = 0;
  double d_sis = 0;
  // Means over scored positions; NaN if there are none.
  double accept_rate;
  double mean_acceptance_probability;
  double mean_k3;  // nats
  double mean_log_envelope;
  double mean_residual_mass;
};

// Streams the behaviour recording into a run of its own, fetches the common prefix, reduces the
// current recording's values at V_K, evaluates, and deletes the run. A member of V_K that
// the current recording does not list raises the envelope as if it had the log-prob of the least
// probable token listed at that position (0 if none is), and adds nothing to the covered mass.
absl::StatusOr<ReplaySummary> Replay(Client& client, const RecordedPair& recordings,
                                     const ReplayOptions& options);

}  // namespace sis
