// Algorithms whose surrogate is a constant weight of log p: a function of the ratio alone. The
// coefficient equals it.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "kernels/decide/algorithms/parameter_range.h"
#include "kernels/decide/algorithms/ratio_clip.h"
#include "kernels/decide/algorithms/token.h"

namespace sis {

// Plain importance sampling on the modified ratio: g(w) = w.
struct ImportanceSampling {
  static constexpr std::string_view kName = "importance_sampling";

  absl::Status Validate() const { return absl::OkStatus(); }
  SIS_HOST_DEVICE Weights Weigh(const Token& token, float /*advantage*/) const {
    return {token.ratio, token.ratio};
  }
};

// As if every token were on-policy: g(w) = 1 (the paper's "w/o IS", tab:trick).
struct NoCorrection {
  static constexpr std::string_view kName = "no_correction";

  absl::Status Validate() const { return absl::OkStatus(); }
  SIS_HOST_DEVICE Weights Weigh(const Token& /*token*/, float /*advantage*/) const {
    return {1.0f, 1.0f};
  }
};

// CISPO (Chen et al., 2025, MiniMax-M1): the ratio with an upper limit, so that no token loses its
// gradient.
struct Cispo {
  static constexpr std::string_view kName = "cispo";
  // The authors tuned it and give no value; 0.2 is the default of verl's clip_ratio_high.
  float epsilon_high = 0.2f;

  absl::Status Validate() const {
    return CheckRange("cispo.epsilon_high", epsilon_high, 0.0f, kNoUpperBound);
  }
  SIS_HOST_DEVICE Weights Weigh(const Token& token, float /*advantage*/) const {
    const float largest = 1.0f + epsilon_high;
    const float weight = token.ratio < largest ? token.ratio : largest;
    return {weight, weight};
  }
};

// With three policies the next two correct proximal / behaviour, and current / proximal is clipped
// as in GRPO.

// Truncated importance sampling (Yao et al., 2025, "Your efficient RL framework secretly brings you
// off-policy RL training"): min(w, C).
struct Tis {
  static constexpr std::string_view kName = "tis";
  float truncation = 2.0f;  // C; the authors' value
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

// IcePop (Ling team, 2025): tokens whose ratio is outside [alpha, beta] have weight 0, others w.
struct IcePop {
  static constexpr std::string_view kName = "ice_pop";
  float alpha = 0.5f;  // both are the authors' values
  float beta = 5.0f;
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
