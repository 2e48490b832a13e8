// The clip of PPO (Schulman et al., 2017), min(w A, clip(w, 1 - low, 1 + high) A), and the
// algorithms that consist of it.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "kernels/decide/algorithms/parameter_range.h"
#include "kernels/decide/algorithms/token.h"
#include "kernels/numerics/host_device.h"

namespace sis {

struct RatioClip {
  float low;
  float high;

  SIS_HOST_DEVICE float Surrogate(float ratio) const {
    const float smallest = 1.0f - low;
    const float largest = 1.0f + high;
    if (ratio < smallest) return smallest;
    return ratio > largest ? largest : ratio;
  }

  // Exactly at a bound, and for an advantage of 0, the coefficient is the ratio.
  SIS_HOST_DEVICE float Coefficient(float ratio, float advantage) const {
    const bool clipped =
        (advantage > 0.0f && ratio > 1.0f + high) || (advantage < 0.0f && ratio < 1.0f - low);
    return clipped ? 0.0f : ratio;
  }
  SIS_HOST_DEVICE Weights Weigh(float ratio, float advantage) const {
    return {Surrogate(ratio), Coefficient(ratio, advantage)};
  }
};

// GRPO (Shao et al., 2024): one bound, as in the paper's eq:grpo.
struct Grpo {
  static constexpr std::string_view kName = "grpo";
  float epsilon = 0.2f;  // the paper's tab:hparams_math

  absl::Status Validate() const { return CheckRange("grpo.epsilon", epsilon, 0.0f, 1.0f); }
  SIS_HOST_DEVICE Weights Weigh(const Token& token, float advantage) const {
    return RatioClip{epsilon, epsilon}.Weigh(token.ratio, advantage);
  }
};

// DAPO (Yu et al., 2025): a higher upper bound.
struct Dapo {
  static constexpr std::string_view kName = "dapo";
  float epsilon_low = 0.2f;  // both from the paper's tab:hparams_math
  float epsilon_high = 0.28f;

  absl::Status Validate() const {
    absl::Status status = CheckRange("dapo.epsilon_low", epsilon_low, 0.0f, 1.0f);
    status.Update(CheckRange("dapo.epsilon_high", epsilon_high, 0.0f, kNoUpperBound));
    return status;
  }
  SIS_HOST_DEVICE Weights Weigh(const Token& token, float advantage) const {
    return RatioClip{epsilon_low, epsilon_high}.Weigh(token.ratio, advantage);
  }
};

}  // namespace sis
