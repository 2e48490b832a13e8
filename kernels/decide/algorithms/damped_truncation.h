// Damped truncation (ours; docs/algorithms.md): the importance ratio, truncated at 1, is a constant
// weight of log p; that of a token which has already moved the way its advantage pushes is
// multiplied by the token's acceptance probability. Nothing of it is drawn.
#pragma once

#include "absl/status/status.h"
#include "kernels/decide/algorithms/algorithm_input.h"
#include "kernels/decide/algorithms/soft_acceptance.h"
#include "kernels/decide/algorithms/token.h"

namespace sis {

struct DampedTruncation {
  absl::Status Validate() const { return absl::OkStatus(); }

  // What a token weighs. importance_ratio is current / behaviour, unmodified, with three policies
  // too.
  SIS_HOST_DEVICE static float Weight(float importance_ratio, float acceptance_probability,
                                      float advantage) {
    return (importance_ratio < 1.0f ? importance_ratio : 1.0f) *
           SoftAcceptance::Factor(importance_ratio, acceptance_probability, advantage);
  }

  // Surrogates and coefficients are the same. Decisions are not looked at.
  void Apply(const AlgorithmInput& batch, const AlgorithmOutput& output) const;
};

}  // namespace sis
