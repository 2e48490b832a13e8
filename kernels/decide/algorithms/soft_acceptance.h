// Soft acceptance (ours; docs/algorithms.md, and docs/math.md, section 7): no clip. The modified
// ratio is a constant weight of log p; that of a token which has already moved the way its
// advantage pushes is multiplied by the token's acceptance probability.
#pragma once

#include "absl/status/status.h"
#include "kernels/decide/algorithms/algorithm_input.h"
#include "kernels/decide/algorithms/token.h"

namespace sis {

struct SoftAcceptance {
  absl::Status Validate() const { return absl::OkStatus(); }

  // What multiplies the modified ratio. importance_ratio is current / behaviour, unmodified, with
  // three policies too.
  SIS_HOST_DEVICE static float Factor(float importance_ratio, float acceptance_probability,
                                      float advantage) {
    return IsOutward(importance_ratio, advantage) ? acceptance_probability : 1.0f;
  }

  // Surrogates and coefficients are the same. On-policy tokens are not exempt.
  void Apply(const AlgorithmInput& batch, const AlgorithmOutput& output) const;
};

}  // namespace sis
