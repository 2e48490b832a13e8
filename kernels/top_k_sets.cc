#include "kernels/top_k_sets.h"

#include <algorithm>

#include "kernels/decide.h"

namespace sis {

void ReduceTopKSetsScalar(const RecordedSets& recorded, const TopKSets& current,
                          const ReducedSets& into) {
  const size_t current_slots = current.slots;
  for (size_t i = 0; i < into.log_envelopes.size(); ++i) {
    const auto current_ids = current.ids.subspan(i * current_slots, current_slots);
    const auto current_log_probs = current.log_probs.subspan(i * current_slots, current_slots);
    // No token outside of the set is more probable than its last one.
    const float bound = current_log_probs.back();
    float max_log_ratio = kMinusInfinity;
    float covered_mass = 0.0f;
    for (int slot = 0; slot < recorded.top_k; ++slot) {
      const size_t at = i * recorded.slots + slot;
      if (recorded.log_probs[at] == kMinusInfinity) continue;
      const auto found = std::ranges::find(current_ids, recorded.ids[at]);
      float log_prob = bound;
      if (found != current_ids.end()) {
        log_prob = current_log_probs[found - current_ids.begin()];
        covered_mass = covered_mass + Exp32(log_prob);
      }
      max_log_ratio = std::max(max_log_ratio, log_prob - recorded.log_probs[at]);
    }
    into.log_envelopes[i] = Flush(max_log_ratio);
    into.covered_masses[i] = covered_mass;
  }
}

void ReduceTopKSets(const RecordedSets& recorded, const TopKSets& current,
                    const ReducedSets& into) {
  ReduceTopKSetsSimd(recorded, current, into);
}

}  // namespace sis
