#include "kernels/testing/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace sis {

ReferencePosition EvaluateReference(std::span<const float> behavior, std::span<const float> current,
                                    float behavior_sampled_log_prob, float current_sampled_log_prob,
                                    bool in_top_k) {
  double log_envelope = -std::numeric_limits<double>::infinity();
  double covered_mass = 0;
  double l1_distance = 0;
  for (size_t slot = 0; slot < behavior.size(); ++slot) {
    if (std::isinf(behavior[slot])) continue;
    log_envelope = std::max(
        log_envelope, static_cast<double>(current[slot]) - static_cast<double>(behavior[slot]));
    const double probability = std::exp(static_cast<double>(current[slot]));
    covered_mass += probability;
    l1_distance += std::abs(probability - std::exp(static_cast<double>(behavior[slot])));
  }
  const double log_ratio = static_cast<double>(current_sampled_log_prob) -
                           static_cast<double>(behavior_sampled_log_prob);
  const bool possible = in_top_k && !std::isinf(current_sampled_log_prob);
  return {
      .log_ratio = log_ratio,
      .log_envelope = log_envelope,
      .acceptance_probability = possible ? std::min(1.0, std::exp(log_ratio - log_envelope)) : 0.0,
      .residual_mass = 1 - covered_mass,
      .expected_acceptance =
          std::isinf(log_envelope) ? 0.0 : covered_mass * std::exp(-log_envelope),
      .k3 = std::expm1(log_ratio) - log_ratio,
      .total_variation = l1_distance / 2,
  };
}

}  // namespace sis
