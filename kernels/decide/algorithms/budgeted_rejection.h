// Optimal budgeted rejection sampling: a constant of the whole batch decides in the place of the
// position's envelope (docs/math.md, section 8).
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/decide/algorithms/parameter_range.h"
#include "kernels/decide/backend.h"
#include "kernels/decide/decide.h"
#include "kernels/numerics/exp32.h"
#include "kernels/numerics/log_prob.h"
#include "kernels/numerics/sums.h"

namespace sis {

struct BudgetedRejection {
  float log_lambda = 0.0f;

  absl::Status Validate() const {
    return CheckRange("budgeted_rejection.log_lambda", log_lambda, -64.0f, 64.0f);
  }

  // min(1, w / lambda), whether or not the token is in V_k.
  float AcceptanceProbability(float log_ratio) const {
    const float excess = Flush(log_ratio - log_lambda);
    return excess >= 0.0f ? 1.0f : Exp32(excess);
  }
  // log max(w, lambda), the logarithm of an accepted token's modified ratio.
  float LogAcceptedRatio(float log_ratio) const {
    return Flush(log_ratio > log_lambda ? log_ratio : log_lambda);
  }
};

// Decides again what a backend has decided with this draw. Stretches must have all outputs that
// follow from the decision or lead to it: log-ratios are read, the others overwritten. `sums` is
// what these stretches alone added up to.
void DecideWithinBudget(const BudgetedRejection& rejection, uint64_t draw,
                        std::span<const Stretch> stretches, Sums& sums);

// Into normalizers [n], of every position of a decided stretch in the GATHERED form: min(q, p /
// lambda) added up over V_k, most probable first.
void ComputeNormalizers(const BudgetedRejection& rejection, const EvaluateParameters& parameters,
                        const Stretch& stretch, std::span<float> normalizers);

}  // namespace sis
