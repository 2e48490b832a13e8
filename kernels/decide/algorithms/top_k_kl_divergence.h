// The KL divergence between two policies at one position, as far as a recorded set shows it.
#pragma once

#include <algorithm>

#include "kernels/decide/algorithms/sequence_trust_region.h"
#include "kernels/decide/backend.h"
#include "kernels/decide/decide.h"
#include "kernels/numerics/exp32.h"
#include "kernels/numerics/exp_sum.h"

namespace sis {

// KL(q || p) = sum of q (log q - log p), nats, over V_k, the sampled token if it lies outside, and
// all other tokens taken as one: a lower bound, and exact where V_k is the vocabulary. A difference
// of logarithms is limited to +-20. Where log-probs were rounded, what that adds may lift it above
// (docs/algorithms.md). Slots are added in the order of the ranks.
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

}  // namespace sis
