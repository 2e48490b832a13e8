// The clip of PPO (Schulman et al., 2017): min(w A, clip(w, 1 - low, 1 + high) A).
#pragma once

#include "kernels/decide/algorithms/token.h"

namespace sis {

struct RatioClip {
  float low;
  float high;

  float Surrogate(float ratio) const {
    const float smallest = 1.0f - low;
    const float largest = 1.0f + high;
    if (ratio < smallest) return smallest;
    return ratio > largest ? largest : ratio;
  }

  // Exactly at a bound, and for an advantage of 0, the coefficient is the ratio.
  float Coefficient(float ratio, float advantage) const {
    const bool clipped =
        (advantage > 0.0f && ratio > 1.0f + high) || (advantage < 0.0f && ratio < 1.0f - low);
    return clipped ? 0.0f : ratio;
  }
  Weights Weigh(float ratio, float advantage) const {
    return {Surrogate(ratio), Coefficient(ratio, advantage)};
  }
};

}  // namespace sis
