// The definition, in double precision and without special cases: what the exact float32 arithmetic
// approximates (docs/math.md). For tests and for reading.
#pragma once

#include <span>

namespace sis {

struct ReferencePosition {
  double log_ratio;     // log w = log p(y) - log q(y)
  double log_envelope;  // log M = max over V_k of log p(v) - log q(v); -inf if V_k is empty
  double acceptance_probability;  // a = w / M if y is in V_k (at most 1), else 0
  double residual_mass;           // xi = 1 - sum over V_k of p(v)
  double expected_acceptance;     // (1 - xi) / M; 0 if V_k is empty
  double k3;                      // w - 1 - log w
  double total_variation;         // half the sum over V_k of |p(v) - q(v)|
};

// behavior and current are log-probs at the k slots of V_k, in any order; -inf in behavior marks an
// unused slot. in_top_k: whether the sampled token is one of them.
ReferencePosition EvaluateReference(std::span<const float> behavior, std::span<const float> current,
                                    float behavior_sampled_log_prob, float current_sampled_log_prob,
                                    bool in_top_k);

}  // namespace sis
