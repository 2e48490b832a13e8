#include "kernels/decide/top_k_sets/top_k_sets.h"

#include <algorithm>
#include <vector>

#include "kernels/decide/decide.h"
#include "kernels/decide/validate.h"

namespace sis {
namespace {

// Of one position, [top_k].
std::vector<int32_t> RecordedIds(const RecordedSets& recorded, size_t position) {
  const GroupedIds& grouped = recorded.grouped_ids;
  if (grouped.empty()) {
    const auto ids = recorded.ids.subspan(position * recorded.slots, recorded.top_k);
    return {ids.begin(), ids.end()};
  }
  const size_t place = grouped.first_lane + position;
  std::vector<RowValues> ranks(recorded.top_k);
  grouped.Unpack(place / kGroupPositions, recorded.slots, ranks);
  std::vector<int32_t> ids;
  for (const RowValues& rank : ranks) ids.push_back(rank[place % kGroupPositions]);
  return ids;
}

}  // namespace

void ReduceTopKSetsScalar(const RecordedSets& recorded, const TopKSets& current,
                          const ReducedSets& into) {
  const LogProbReader behavior(recorded.log_probs, recorded.grouped_log_probs, recorded.slots);
  const size_t current_slots = current.slots;
  for (size_t i = 0; i < into.log_envelopes.size(); ++i) {
    const auto current_ids = current.ids.subspan(i * current_slots, current_slots);
    const auto current_log_probs = current.log_probs.subspan(i * current_slots, current_slots);
    // No token outside of the set is more probable than its last one.
    const float bound = current_log_probs.back();
    const std::vector<int32_t> ids = RecordedIds(recorded, i);
    float max_log_ratio = kMinusInfinity;
    float covered_mass = 0.0f;
    for (int slot = 0; slot < recorded.top_k; ++slot) {
      const float behavior_log_prob = behavior.At(i, slot);
      if (behavior_log_prob == kMinusInfinity) continue;
      const auto found = std::ranges::find(current_ids, ids[slot]);
      float log_prob = bound;
      if (found != current_ids.end()) {
        log_prob = current_log_probs[found - current_ids.begin()];
        covered_mass = covered_mass + Exp32(log_prob);
      }
      max_log_ratio = std::max(max_log_ratio, log_prob - behavior_log_prob);
    }
    into.log_envelopes[i] = Flush(max_log_ratio);
    into.covered_masses[i] = covered_mass;
  }
}

absl::Status ReduceTopKSets(const RecordedSets& recorded, const TopKSets& current,
                            int32_t vocabulary_size, uint32_t first_position,
                            const ReducedSets& into) {
  if (ReduceTopKSetsSimd(recorded, current, vocabulary_size, into)) return absl::OkStatus();
  absl::Status status = ValidateTopKSets(current, vocabulary_size, first_position);
  if (status.ok()) ReduceTopKSetsScalar(recorded, current, into);
  return status;
}

}  // namespace sis
