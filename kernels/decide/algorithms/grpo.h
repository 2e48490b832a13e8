// GRPO (Shao et al., 2024): PPO's clip with one bound, as in the paper's eq:grpo.
#pragma once

#include "absl/status/status.h"
#include "kernels/decide/algorithms/parameter_range.h"
#include "kernels/decide/algorithms/ratio_clip.h"
#include "kernels/decide/algorithms/token.h"

namespace sis {

struct Grpo {
  float epsilon = 0.2f;  // the paper's tab:hparams_math

  absl::Status Validate() const { return CheckRange("grpo.epsilon", epsilon, 0.0f, 1.0f); }
  SIS_HOST_DEVICE float Surrogate(const Token& token) const {
    return RatioClip{epsilon, epsilon}.Surrogate(token.ratio);
  }
  SIS_HOST_DEVICE float Coefficient(const Token& token, float advantage) const {
    return RatioClip{epsilon, epsilon}.Coefficient(token.ratio, advantage);
  }
};

}  // namespace sis
