// The KL divergence between two policies at one position, as far as a recorded set shows it.
#pragma once

#include <algorithm>
#include <span>

#include "kernels/decide/algorithms/sequence_trust_region.h"
#include "kernels/decide/backend.h"
#include "kernels/decide/decide.h"
#include "kernels/numerics/exp32.h"
#include "kernels/numerics/exp_sum.h"

namespace sis {

// KL(q || p) = sum of q (log q - log p), nats, over V_k, the sampled token if it lies outside, and
// all other tokens taken as one: a lower bound, and exact where V_k is the vocabulary. A difference
// of logarithms is limited to +-20. Slots are added in the order of the ranks.
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

// Of every position of a stretch in the GATHERED form, over V_k; into kl_divergences [n].
inline void ComputeTopKKlDivergences(const EvaluateParameters& parameters, const Stretch& stretch,
                                     std::span<float> kl_divergences) {
  const BehaviorView& behavior = stretch.behavior;
  const CurrentView& current = stretch.current;
  const LogProbReader behavior_log_probs(behavior.log_probs, behavior.grouped_log_probs,
                                         parameters.slots);
  const CurrentReader current_log_probs(current, parameters.slots);
  for (size_t i = 0; i < kl_divergences.size(); ++i) {
    TopKKlDivergence divergence;
    for (int slot = 0; slot < parameters.top_k; ++slot) {
      divergence.Add(behavior_log_probs.At(i, slot), current_log_probs.At(i, slot));
    }
    if (behavior.sampled_ranks[i] >= parameters.top_k) {
      divergence.Add(behavior.sampled_log_probs[i], current.sampled_log_probs[i]);
    }
    kl_divergences[i] = divergence.Finish();
  }
}

}  // namespace sis
