// compat = AUTHORS_CODE: what the released code of the paper's authors decides where it departs
// from the paper (docs/algorithms.md). For reproducing their runs, not for new ones: accepted
// tokens follow no stated law.
#pragma once

#include <span>

#include "absl/status/status.h"
#include "kernels/decide/algorithms/parameter_range.h"
#include "kernels/decide/backend.h"
#include "kernels/decide/decide.h"
#include "kernels/numerics/exp32.h"
#include "kernels/numerics/host_device.h"
#include "kernels/numerics/log64.h"
#include "kernels/numerics/sums.h"

namespace sis {

struct AuthorsCode {
  // The clip of the algorithm that the ratios go to.
  float epsilon_low = 0.2f;
  float epsilon_high = 0.2f;

  absl::Status Validate() const {
    // log(1 - epsilon_low) must be finite.
    absl::Status status = CheckRange("authors_code.epsilon_low", epsilon_low, 0.0f, 0.999f);
    status.Update(CheckRange("authors_code.epsilon_high", epsilon_high, 0.0f, kNoUpperBound));
    return status;
  }

  SIS_HOST_DEVICE static float LimitLogRatio(float log_ratio) {
    constexpr float kLargest = 20.0f;
    if (log_ratio > kLargest) return kLargest;
    return log_ratio < -kLargest ? -kLargest : log_ratio;
  }

  // As sis::Decide, but nothing asks whether the sampled token is in V_k, log-ratios (that of the
  // envelope too) are limited to +-20, and equal log-probs are always accepted. The result's
  // log_ratio is limited.
  SIS_HOST_DEVICE static PositionResult Decide(float behavior_sampled_log_prob,
                                               float current_sampled_log_prob, float log_envelope,
                                               uint32_t uniform) {
    const float log_ratio =
        LimitLogRatio(Flush(current_sampled_log_prob - behavior_sampled_log_prob));
    const float excess = Flush(log_ratio - LimitLogRatio(log_envelope));
    const bool equal = current_sampled_log_prob == behavior_sampled_log_prob;
    const float acceptance_probability = equal || excess >= 0.0f ? 1.0f : Exp32(excess);
    const auto threshold = static_cast<uint64_t>(acceptance_probability * 0x1p32f);
    return {uniform < threshold ? Decision::kAccepted : Decision::kRejected, false,
            acceptance_probability, log_ratio};
  }

  // What a position adds to D after the correction, in the units of sis::Sums: nothing if it was
  // accepted, else its log-ratio limited to the logarithms of the clip's bounds. D before and
  // after are both averaged over the positions, not summed.
  SIS_HOST_DEVICE int64_t ModifiedDeviation(const PositionResult& result) const {
    if (result.decision == Decision::kAccepted) return 0;
    const auto low = static_cast<float>(Log64(1.0 - static_cast<double>(epsilon_low)));
    const auto high = static_cast<float>(Log64(1.0 + static_cast<double>(epsilon_high)));
    float log_ratio = result.log_ratio < low ? low : result.log_ratio;
    log_ratio = log_ratio > high ? high : log_ratio;
    return Fixed(log_ratio < 0.0f ? -log_ratio : log_ratio);
  }
};

// As Backend::Evaluate, with these decisions. Sums have no total variation and no envelope
// violations; d_sis is that of ModifiedDeviation.
void EvaluateAuthorsCode(const AuthorsCode& code, const EvaluateParameters& parameters,
                         std::span<const Stretch> stretches);

}  // namespace sis
