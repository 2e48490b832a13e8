// DPPO (Qi et al., 2026, "Rethinking the trust region in LLM reinforcement learning"): a token's
// update is dropped where the position's distributions lie too far apart in total variation and
// the update would take them further.
#pragma once

#include "absl/status/status.h"
#include "kernels/decide/algorithms/parameter_range.h"
#include "kernels/decide/algorithms/token.h"

namespace sis {

// The trust region that both variants share.
struct TrustRegion {
  float threshold;

  // The symmetric indicator of the paper's tab:trick.
  SIS_HOST_DEVICE float Surrogate(float ratio, float total_variation) const {
    return total_variation > threshold ? 0.0f : ratio;
  }
  // As its authors define it: what leads back into the region is kept.
  SIS_HOST_DEVICE float Coefficient(float ratio, float total_variation, float advantage) const {
    return IsOutward(ratio, advantage) && total_variation > threshold ? 0.0f : ratio;
  }
};

// The total variation over V_k, the sampled token and everything else: Token::total_variation,
// TopKTotalVariation.
struct DppoTopK {
  float threshold = 0.15f;  // delta; the authors' value for the binary variant

  absl::Status Validate() const { return CheckRange("dppo_top_k.threshold", threshold, 0, 1); }
  SIS_HOST_DEVICE float Surrogate(const Token& token) const {
    return TrustRegion{threshold}.Surrogate(token.ratio, token.total_variation);
  }
  SIS_HOST_DEVICE float Coefficient(const Token& token, float advantage) const {
    return TrustRegion{threshold}.Coefficient(token.ratio, token.total_variation, advantage);
  }
};

// The total variation over {y, everything else}: |p(y) - q(y)|. It needs no recorded set.
struct DppoBinary {
  float threshold = 0.15f;  // delta, from the authors' recipe

  SIS_HOST_DEVICE static float TotalVariation(const Token& token) {
    const float difference = Exp32(token.current_log_prob) - Exp32(token.reference_log_prob);
    return difference < 0.0f ? -difference : difference;
  }

  absl::Status Validate() const { return CheckRange("dppo_binary.threshold", threshold, 0, 1); }
  SIS_HOST_DEVICE float Surrogate(const Token& token) const {
    return TrustRegion{threshold}.Surrogate(token.ratio, TotalVariation(token));
  }
  SIS_HOST_DEVICE float Coefficient(const Token& token, float advantage) const {
    return TrustRegion{threshold}.Coefficient(token.ratio, TotalVariation(token), advantage);
  }
};

}  // namespace sis
