// The mean of the modified ratio over the draw: weight = EXPECTED (docs/math.md, section 4).
#pragma once

#include "kernels/decide/backend.h"
#include "kernels/decide/decide.h"
#include "kernels/numerics/exp32.h"
#include "kernels/numerics/log64.h"

namespace sis {

// Returns a + (1 - a) w.
inline float ExpectedRatio(float acceptance_probability, float log_ratio) {
  return acceptance_probability + (1.0f - acceptance_probability) * Exp32(log_ratio);
}

// Returns the logarithm of ExpectedRatio. It is between 0 and log_ratio despite rounding, so that
// D_SIS <= D. It is -inf if log_ratio is below the range of Exp32 and a is 0.
inline float LogExpectedRatio(float acceptance_probability, float log_ratio) {
  if (acceptance_probability == 0.0f) return log_ratio;
  const float ratio = ExpectedRatio(acceptance_probability, log_ratio);
  const float logarithm = Flush(static_cast<float>(Log64(static_cast<double>(ratio))));
  const float low = log_ratio < 0.0f ? log_ratio : 0.0f;
  const float high = log_ratio < 0.0f ? 0.0f : log_ratio;
  if (logarithm < low) return low;
  return logarithm > high ? high : logarithm;
}

// Replaces a range's modified ratios by their means. The output must have acceptance probabilities.
// Returns the sum that the positions add to D_SIS.
inline int64_t ReplaceByExpectedWeights(const BackendRange& range) {
  const OutputView& output = range.output;
  int64_t d_sis = 0;
  for (size_t i = 0; i < output.decisions.size(); ++i) {
    const float a = output.acceptance_probabilities[i];
    const float log_ratio =
        Flush(range.current.sampled_log_probs[i] - range.behavior.sampled_log_probs[i]);
    const float expected = LogExpectedRatio(a, log_ratio);
    d_sis += Fixed(expected < 0.0f ? -expected : expected);
    if (!output.log_modified_ratios.empty()) output.log_modified_ratios[i] = expected;
    if (!output.modified_ratios.empty()) output.modified_ratios[i] = ExpectedRatio(a, log_ratio);
  }
  return d_sis;
}

}  // namespace sis
