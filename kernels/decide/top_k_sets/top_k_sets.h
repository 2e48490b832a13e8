// The TOP_K form: the current policy's own most probable tokens, and what they say about a recorded
// set (docs/numerics.md, section 11). Free of the sampled token, which the laws need.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/records/grouped_ids.h"
#include "kernels/records/grouped_log_probs.h"

namespace sis {

// The current policy's sets at n positions, most probable first, row-major. Unused slots come last
// and hold -1 and -inf.
struct TopKSets {
  int slots;                         // K', in [1, kMaxTopK]
  std::span<const int32_t> ids;      // [n, K']
  std::span<const float> log_probs;  // [n, K'], nats
};

// The recorded sets of the same positions, token after token or both in groups, with the same lane
// for the first position.
struct RecordedSets {
  int slots;                         // K, the row length
  int top_k;                         // k in [1, K], the slots used
  std::span<const int32_t> ids;      // [n, K]; or empty, and then grouped_ids
  std::span<const float> log_probs;  // [n, K], of the behaviour policy; -inf in unused slots
  GroupedIds grouped_ids = {};
  GroupedLogProbs grouped_log_probs = {};
};

// The REDUCED form of the same positions.
struct ReducedSets {
  std::span<float> log_envelopes;   // [n]: at least the log of the largest ratio on V_k
  std::span<float> covered_masses;  // [n]: of those of V_k that are in the current set
};

// InvalidArgument, as ValidateTopKSets says it, if a set is not valid; `into` may then hold
// anything. Lengths must agree.
absl::Status ReduceTopKSets(const RecordedSets& recorded, const TopKSets& current,
                            int32_t vocabulary_size, uint32_t first_position,
                            const ReducedSets& into);

// The definition. The sets must be valid (kernels/decide/validate.h).
void ReduceTopKSetsScalar(const RecordedSets& recorded, const TopKSets& current,
                          const ReducedSets& into);

// On vectors: the same bytes if true. False if a set is not valid, and for some that are: always on
// machines without vectors, and for masses so near to the limit that the order of adding decides.
bool ReduceTopKSetsSimd(const RecordedSets& recorded, const TopKSets& current,
                        int32_t vocabulary_size, const ReducedSets& into);

}  // namespace sis
