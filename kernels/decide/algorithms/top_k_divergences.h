// How far two policies are apart at one position, as far as a recorded set shows it: over V_k, the
// sampled token if it lies outside, and all other tokens taken as one. Both are lower bounds, and
// exact where V_k is the vocabulary. Slots are added in the order of the ranks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "kernels/decide/algorithms/sequence_trust_region.h"
#include "kernels/decide/backend.h"
#include "kernels/decide/decide.h"
#include "kernels/numerics/exp32.h"
#include "kernels/numerics/host_device.h"
#include "kernels/numerics/log64.h"

namespace sis {

// Half the sum of |p - q|, the total variation of DPPO's top-K variant.
struct TopKTotalVariation {
  float distance = 0.0f;
  float behavior_mass = 0.0f;
  float current_mass = 0.0f;

  // A slot, or the sampled token where it is outside. behavior_log_prob of -inf marks an unused
  // slot, and current_log_prob may then be anything.
  SIS_HOST_DEVICE void Add(float behavior_log_prob, float current_log_prob) {
    if (behavior_log_prob == kMinusInfinity) return;
    const float behavior = Exp32(behavior_log_prob);
    const float current = Exp32(current_log_prob);
    distance = distance + Magnitude(current - behavior);
    behavior_mass = behavior_mass + behavior;
    current_mass = current_mass + current;
  }

  // In [0, 1].
  SIS_HOST_DEVICE float Finish() const {
    const float half = 0.5f * (distance + Magnitude(Rest(current_mass) - Rest(behavior_mass)));
    return half < 1.0f ? half : 1.0f;
  }

 private:
  SIS_HOST_DEVICE static float Magnitude(float x) { return x < 0.0f ? -x : x; }
  // Rounding may leave a mass above 1.
  SIS_HOST_DEVICE static float Rest(float mass) { return mass < 1.0f ? 1.0f - mass : 0.0f; }
};

// KL(q || p) = sum of q (log q - log p), nats. A difference of logarithms is limited to +-20. Where
// log-probs were rounded, what that adds may lift it above (docs/algorithms.md).
struct TopKKlDivergence {
  double sum = 0.0;
  double behavior_mass = 0.0;
  double current_mass = 0.0;

  // As of TopKTotalVariation.
  void Add(float behavior_log_prob, float current_log_prob) {
    if (behavior_log_prob == kMinusInfinity) return;
    const double behavior = Exp32(behavior_log_prob);
    sum += behavior * Limited(double{behavior_log_prob} - double{current_log_prob});
    behavior_mass += behavior;
    current_mass += Exp32(current_log_prob);
  }

  // At least 0.
  float Finish() const {
    double total = sum;
    // What rounding leaves of a mass is no probability.
    constexpr double kRounding = 0x1p-20;
    if (const double rest = 1.0 - behavior_mass; rest > kRounding) {
      const double current_rest = std::max(kRounding, 1.0 - current_mass);
      total += rest * Limited(Log64(rest) - Log64(current_rest));
    }
    return total > 0.0 ? static_cast<float>(total) : 0.0f;
  }

 private:
  static double Limited(double x) { return std::clamp(x, -kLargestLogRatio, kLargestLogRatio); }
};

// Of every position of a stretch in the GATHERED form; into divergences [n]. Divergence: one of the
// two.
template <typename Divergence>
void ComputeTopKDivergences(const EvaluateParameters& parameters, const Stretch& stretch,
                            std::span<float> divergences) {
  const BehaviorView& behavior = stretch.behavior;
  const CurrentView& current = stretch.current;
  const LogProbReader behavior_log_probs = behavior.Reader(parameters.slots);
  const CurrentReader current_log_probs(current, parameters.slots);
  for (size_t i = 0; i < divergences.size(); ++i) {
    Divergence divergence;
    for (int slot = 0; slot < parameters.top_k; ++slot) {
      divergence.Add(behavior_log_probs.At(i, slot), current_log_probs.At(i, slot));
    }
    if (behavior.sampled_ranks[i] >= parameters.top_k) {
      divergence.Add(behavior.sampled_log_probs[i], current.sampled_log_probs[i]);
    }
    divergences[i] = divergence.Finish();
  }
}

}  // namespace sis
