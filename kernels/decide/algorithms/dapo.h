// DAPO (Yu et al., 2025): PPO's clip with a higher upper bound.
#pragma once

#include "absl/status/status.h"
#include "kernels/decide/algorithms/parameter_range.h"
#include "kernels/decide/algorithms/ratio_clip.h"
#include "kernels/decide/algorithms/token.h"

namespace sis {

struct Dapo {
  float epsilon_low = 0.2f;  // both from the paper's tab:hparams_math
  float epsilon_high = 0.28f;

  absl::Status Validate() const {
    absl::Status status = CheckRange("dapo.epsilon_low", epsilon_low, 0.0f, 1.0f);
    status.Update(CheckRange("dapo.epsilon_high", epsilon_high, 0.0f, kNoUpperBound));
    return status;
  }
  SIS_HOST_DEVICE float Surrogate(const Token& token) const {
    return RatioClip{epsilon_low, epsilon_high}.Surrogate(token.ratio);
  }
  SIS_HOST_DEVICE float Coefficient(const Token& token, float advantage) const {
    return RatioClip{epsilon_low, epsilon_high}.Coefficient(token.ratio, advantage);
  }
};

}  // namespace sis
