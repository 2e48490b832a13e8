// The TOP_K form: what the current policy's own most probable tokens say about a recorded set
// (docs/numerics.md, section 11). It never looks at the sampled token, as the laws require.
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

// Checks the current policy's own sets. InvalidArgument names field, position and value. The
// arrays' lengths must agree.
absl::Status ValidateTopKSets(const TopKSets& sets, int32_t vocabulary_size,
                              uint32_t first_position);

// InvalidArgument, as ValidateTopKSets says it, if a set is not valid; `into` may then hold
// anything. Lengths must agree.
absl::Status ReduceTopKSets(const RecordedSets& recorded, const TopKSets& current,
                            int32_t vocabulary_size, uint32_t first_position,
                            const ReducedSets& into);

// The definition. The sets must be valid.
void ReduceTopKSetsScalar(const RecordedSets& recorded, const TopKSets& current,
                          const ReducedSets& into);

// The same on vectors. False if a set is not valid, and now and then if all are: on machines
// without vectors, and where a mass is so near its limit that the order of adding decides.
bool ReduceTopKSetsSimd(const RecordedSets& recorded, const TopKSets& current,
                        int32_t vocabulary_size, const ReducedSets& into);

}  // namespace sis
