// DPPO (Qi et al., 2026, "Rethinking the trust region in LLM reinforcement learning"): drops a
// token's update if the total variation of the position's distributions is too large and the update
// would increase it.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "kernels/decide/algorithms/parameter_range.h"
#include "kernels/decide/algorithms/token.h"

namespace sis {

// The trust region that both variants share.
struct TrustRegion {
  float threshold;

  SIS_HOST_DEVICE Weights Weigh(float ratio, float total_variation, float advantage) const {
    const bool outside = total_variation > threshold;
    // The surrogate is the symmetric indicator of the paper's tab:trick. The coefficient follows
    // the authors' definition, which keeps updates that lead back into the region.
    return {outside ? 0.0f : ratio, outside && IsOutward(ratio, advantage) ? 0.0f : ratio};
  }
};

// The total variation over V_k, the sampled token and everything else: Token::total_variation,
// TopKTotalVariation.
struct DppoTopK {
  static constexpr std::string_view kName = "dppo_top_k";
  float threshold = 0.15f;  // delta; the authors' value for the binary variant

  absl::Status Validate() const { return CheckRange("dppo_top_k.threshold", threshold, 0, 1); }
  SIS_HOST_DEVICE Weights Weigh(const Token& token, float advantage) const {
    return TrustRegion{threshold}.Weigh(token.ratio, token.total_variation, advantage);
  }
};

// The total variation over {y, everything else}: |p(y) - q(y)|. It needs no recorded set.
struct DppoBinary {
  static constexpr std::string_view kName = "dppo_binary";
  float threshold = 0.15f;  // delta, from the authors' recipe

  SIS_HOST_DEVICE static float TotalVariation(const Token& token) {
    const float difference = Exp32(token.current_log_prob) - Exp32(token.reference_log_prob);
    return difference < 0.0f ? -difference : difference;
  }

  absl::Status Validate() const { return CheckRange("dppo_binary.threshold", threshold, 0, 1); }
  SIS_HOST_DEVICE Weights Weigh(const Token& token, float advantage) const {
    return TrustRegion{threshold}.Weigh(token.ratio, TotalVariation(token), advantage);
  }
};

}  // namespace sis
