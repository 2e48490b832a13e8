// The mean of the modified ratio over the draw: weight = EXPECTED (docs/math.md, section 4).
#pragma once

#include "kernels/decide.h"
#include "kernels/exp32.h"
#include "kernels/exp_sum.h"
#include "kernels/host_device.h"

namespace sis {

// a + (1 - a) w.
SIS_HOST_DEVICE inline float ExpectedRatio(float acceptance_probability, float log_ratio) {
  return acceptance_probability + (1.0f - acceptance_probability) * Exp32(log_ratio);
}

// Its logarithm. It lies between 0 and log_ratio whatever is rounded, so that D_SIS <= D; -inf if
// log_ratio is below the range of Exp32 and a is 0.
SIS_HOST_DEVICE inline float LogExpectedRatio(float acceptance_probability, float log_ratio) {
  if (acceptance_probability == 0.0f) return log_ratio;
  const float ratio = ExpectedRatio(acceptance_probability, log_ratio);
  const float logarithm = Flush(static_cast<float>(Log64(static_cast<double>(ratio))));
  const float low = log_ratio < 0.0f ? log_ratio : 0.0f;
  const float high = log_ratio < 0.0f ? 0.0f : log_ratio;
  if (logarithm < low) return low;
  return logarithm > high ? high : logarithm;
}

}  // namespace sis
