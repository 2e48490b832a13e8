// The TOP_K form: the current policy's own most probable tokens, and what they say about a recorded
// set (docs/numerics.md, section 11). Free of the sampled token, which the laws need.
#pragma once

#include <cstdint>
#include <span>

namespace sis {

// The current policy's sets at n positions, most probable first, row-major. Unused slots come last
// and hold -1 and -inf.
struct TopKSets {
  int slots;                         // K', in [1, kMaxTopK]
  std::span<const int32_t> ids;      // [n, K']
  std::span<const float> log_probs;  // [n, K'], nats
};

// The recorded sets of the same positions.
struct RecordedSets {
  int slots;                         // K, the row length
  int top_k;                         // k in [1, K], the slots used
  std::span<const int32_t> ids;      // [n, K]
  std::span<const float> log_probs;  // [n, K], of the behaviour policy; -inf in unused slots
};

// The REDUCED form of the same positions.
struct ReducedSets {
  std::span<float> log_envelopes;   // [n]: at least the log of the largest ratio on V_k
  std::span<float> covered_masses;  // [n]: of those of V_k that are in the current set
};

// The sets must be valid (kernels/validate.h), lengths must agree. All give the same bytes; the
// first chooses.
void ReduceTopKSets(const RecordedSets& recorded, const TopKSets& current, const ReducedSets& into);
void ReduceTopKSetsScalar(const RecordedSets& recorded, const TopKSets& current,
                          const ReducedSets& into);
void ReduceTopKSetsSimd(const RecordedSets& recorded, const TopKSets& current,
                        const ReducedSets& into);

}  // namespace sis
