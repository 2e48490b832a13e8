// Truncated importance sampling (Yao et al., 2025, "Your efficient RL framework secretly brings you
// off-policy RL training"): min(w, C), a constant weight of log p.
#pragma once

#include "absl/status/status.h"
#include "kernels/decide/algorithms/parameter_range.h"
#include "kernels/decide/algorithms/ratio_clip.h"

namespace sis {

struct Tis {
  float truncation = 2.0f;  // C; the authors' value
  // With three policies the truncation is on proximal / behaviour, and current / proximal is
  // clipped as in GRPO.
  float epsilon_low = 0.2f;
  float epsilon_high = 0.2f;

  absl::Status Validate() const {
    absl::Status status = CheckRange("tis.truncation", truncation, 1.0f, kNoUpperBound);
    status.Update(CheckRange("tis.epsilon_low", epsilon_low, 0.0f, 1.0f));
    status.Update(CheckRange("tis.epsilon_high", epsilon_high, 0.0f, kNoUpperBound));
    return status;
  }
  SIS_HOST_DEVICE float Correct(float correction) const {
    return correction < truncation ? correction : truncation;
  }
  SIS_HOST_DEVICE RatioClip clip() const { return {epsilon_low, epsilon_high}; }
};

}  // namespace sis
