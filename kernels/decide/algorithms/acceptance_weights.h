// Our algorithms that weigh by acceptance probabilities (docs/algorithms.md; docs/math.md, section
// 7). They multiply the weight of a token that has already moved in the direction of its advantage
// by its acceptance probability. There is no clip: the result is a constant weight of log p.
// On-policy tokens are not exempt.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "kernels/decide/algorithms/token.h"

namespace sis {

// Input of acceptance weights in addition to the modified ratio.
struct AcceptanceToken {
  float importance_ratio;  // current / behaviour, unmodified, with three policies too
  float acceptance_probability;
  float advantage;

  SIS_HOST_DEVICE float Factor() const {
    return IsOutward(importance_ratio, advantage) ? acceptance_probability : 1.0f;
  }
};

// Soft acceptance: applied to the modified ratio.
struct SoftAcceptance {
  static constexpr std::string_view kName = "soft_acceptance";

  absl::Status Validate() const { return absl::OkStatus(); }
  SIS_HOST_DEVICE float Weight(float modified_ratio, const AcceptanceToken& token) const {
    return modified_ratio * token.Factor();
  }
};

// Damped truncation: applied to the importance ratio, truncated at 1. It is deterministic and
// ignores decisions.
struct DampedTruncation {
  static constexpr std::string_view kName = "damped_truncation";

  absl::Status Validate() const { return absl::OkStatus(); }
  SIS_HOST_DEVICE float Weight(float /*modified_ratio*/, const AcceptanceToken& token) const {
    return (token.importance_ratio < 1.0f ? token.importance_ratio : 1.0f) * token.Factor();
  }
};

}  // namespace sis
