#include "kernels/decide/top_k_sets/top_k_sets.h"

#include <algorithm>

#include "absl/status/statusor.h"
#include "kernels/numerics/exp32.h"
#include "kernels/numerics/log_prob.h"
#include "kernels/records/slot_checker.h"

namespace sis {
namespace {

int32_t RecordedId(const RecordedSets& recorded, size_t position, size_t slot) {
  const GroupedIds& grouped = recorded.grouped_ids;
  if (grouped.empty()) return recorded.ids[position * recorded.slots + slot];
  return static_cast<int32_t>(grouped.At(grouped.first_lane + position, slot, recorded.slots));
}

// Checks the current policy's own set at one position.
absl::Status ValidateTopKSet(std::span<const int32_t> ids, std::span<const float> log_probs,
                             int32_t vocabulary_size, uint32_t position) {
  if (ids[0] == -1 && log_probs[0] == kMinusInfinity) {
    return InvalidSlot("top_k_set.ids", position, 0, "-1: the set is empty");
  }
  SlotChecker checker("top_k_set.", ids, log_probs, vocabulary_size, position);
  for (size_t slot = 0; slot < ids.size(); ++slot) {
    const absl::StatusOr<bool> used = checker.Check(slot);
    if (!used.ok()) return used.status();
  }
  return checker.CheckMass();
}

}  // namespace

absl::Status ValidateTopKSets(const TopKSets& sets, int32_t vocabulary_size,
                              uint32_t first_position) {
  const size_t slots = sets.slots;
  for (size_t i = 0; i < sets.ids.size() / slots; ++i) {
    absl::Status status = ValidateTopKSet(sets.ids.subspan(i * slots, slots),
                                          sets.log_probs.subspan(i * slots, slots), vocabulary_size,
                                          static_cast<uint32_t>(first_position + i));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

void ReduceTopKSetsScalar(const RecordedSets& recorded, const TopKSets& current,
                          const ReducedSets& into) {
  const LogProbReader behavior(recorded.log_probs, recorded.grouped_log_probs, recorded.slots);
  const size_t current_slots = current.slots;
  for (size_t i = 0; i < into.log_envelopes.size(); ++i) {
    const auto current_ids = current.ids.subspan(i * current_slots, current_slots);
    const auto current_log_probs = current.log_probs.subspan(i * current_slots, current_slots);
    // No token outside of the set is more probable than its last one.
    const float bound = current_log_probs.back();
    float max_log_ratio = kMinusInfinity;
    float covered_mass = 0.0f;
    for (int slot = 0; slot < recorded.top_k; ++slot) {
      const float behavior_log_prob = behavior.At(i, slot);
      if (behavior_log_prob == kMinusInfinity) continue;
      const auto found = std::ranges::find(current_ids, RecordedId(recorded, i, slot));
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
