// IcePop (Ling team, 2025): tokens whose ratio lies outside [alpha, beta] are left out, the others
// weigh w, a constant weight of log p.
#pragma once

#include "absl/status/status.h"
#include "kernels/decide/algorithms/parameter_range.h"
#include "kernels/decide/algorithms/ratio_clip.h"

namespace sis {

struct IcePop {
  float alpha = 0.5f;  // both are the authors' values
  float beta = 5.0f;
  // With three policies the region is that of proximal / behaviour, and current / proximal is
  // clipped as in GRPO.
  float epsilon_low = 0.2f;
  float epsilon_high = 0.2f;

  absl::Status Validate() const {
    absl::Status status = CheckRange("ice_pop.alpha", alpha, 0.0f, 1.0f);
    status.Update(CheckRange("ice_pop.beta", beta, 1.0f, kNoUpperBound));
    status.Update(CheckRange("ice_pop.epsilon_low", epsilon_low, 0.0f, 1.0f));
    status.Update(CheckRange("ice_pop.epsilon_high", epsilon_high, 0.0f, kNoUpperBound));
    return status;
  }
  SIS_HOST_DEVICE float Correct(float correction) const {
    return correction >= alpha && correction <= beta ? correction : 0.0f;
  }
  SIS_HOST_DEVICE RatioClip clip() const { return {epsilon_low, epsilon_high}; }
};

}  // namespace sis
