// CISPO (Chen et al., 2025, MiniMax-M1): the ratio, limited from above, is a constant weight of
// log p, so that no token loses its gradient.
#pragma once

#include "absl/status/status.h"
#include "kernels/decide/algorithms/parameter_range.h"
#include "kernels/decide/algorithms/token.h"

namespace sis {

struct Cispo {
  // The authors tuned it and give no value; 0.2 is what verl's clip_ratio_high defaults to.
  float epsilon_high = 0.2f;

  absl::Status Validate() const {
    return CheckRange("cispo.epsilon_high", epsilon_high, 0.0f, kNoUpperBound);
  }
  SIS_HOST_DEVICE float Surrogate(const Token& token) const {
    const float largest = 1.0f + epsilon_high;
    return token.ratio < largest ? token.ratio : largest;
  }
  SIS_HOST_DEVICE float Coefficient(const Token& token, float /*advantage*/) const {
    return Surrogate(token);
  }
};

}  // namespace sis
