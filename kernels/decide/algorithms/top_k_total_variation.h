// The total variation of DPPO's top-K variant, between two policies at one position, from a
// recorded set. The sum is over V_k, the sampled token if it is outside, and all other tokens taken
// as one. It is a lower bound, and exact if V_k is the vocabulary. Slots are added in the order of
// the ranks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "kernels/decide/backend.h"
#include "kernels/numerics/exp32.h"

namespace sis {

// Computes half the sum of |p - q|.
struct TopKTotalVariation {
  float distance = 0.0f;
  float behavior_mass = 0.0f;
  float current_mass = 0.0f;

  // Adds a slot, or the sampled token if it is outside. A behavior_log_prob of -inf marks an unused
  // slot, whose current_log_prob may have any value.
  void Add(float behavior_log_prob, float current_log_prob) {
    if (behavior_log_prob == kMinusInfinity) return;
    const float behavior = Exp32(behavior_log_prob);
    const float current = Exp32(current_log_prob);
    distance = distance + Magnitude(current - behavior);
    behavior_mass = behavior_mass + behavior;
    current_mass = current_mass + current;
  }

  // Returns a value in [0, 1].
  float Finish() const {
    const float half = 0.5f * (distance + Magnitude(Rest(current_mass) - Rest(behavior_mass)));
    return half < 1.0f ? half : 1.0f;
  }

 private:
  static float Magnitude(float x) { return x < 0.0f ? -x : x; }
  // Rounding may leave a mass above 1.
  static float Rest(float mass) { return mass < 1.0f ? 1.0f - mass : 0.0f; }
};

// Writes the total variation of every position of a range in the GATHERED form into
// total_variations [n].
inline void ComputeTopKTotalVariations(const EvaluateParameters& parameters,
                                       const BackendRange& range,
                                       std::span<float> total_variations) {
  const BlockRange& behavior = range.behavior;
  const CurrentView& current = range.current;
  const int top_k = std::min(parameters.top_k, kMaxBlockSlots);
  size_t used = 0;
  for (size_t i = 0; i < total_variations.size(); used += behavior.counts[i++]) {
    TopKTotalVariation distance;
    for (int slot = 0; slot < std::min<int>(top_k, behavior.counts[i]); ++slot) {
      distance.Add(behavior.LogProbAt(i, used + slot), current.log_probs[used + slot]);
    }
    if (behavior.ranks[i] >= top_k) {
      distance.Add(behavior.sampled_log_probs[i], current.sampled_log_probs[i]);
    }
    total_variations[i] = distance.Finish();
  }
}

}  // namespace sis
