#include "kernels/decide/algorithms/soft_acceptance.h"

#include <cstddef>

namespace sis {

void SoftAcceptance::Apply(const AlgorithmInput& batch, const AlgorithmOutput& output) const {
  const bool three_policies = !batch.log_corrections.empty();
  for (size_t i = 0; i < batch.states.size(); ++i) {
    float weight = 0.0f;
    if (batch.states[i] != TokenState::kMasked) {
      weight = Exp32(batch.log_ratios[i]);
      if (three_policies) weight = RatioProduct(Exp32(batch.log_corrections[i]), weight);
      weight = weight * Factor(Exp32(batch.log_importance_ratios[i]),
                               batch.acceptance_probabilities[i], batch.advantages[i]);
    }
    if (!output.surrogates.empty()) output.surrogates[i] = weight;
    if (!output.coefficients.empty()) output.coefficients[i] = weight;
  }
}

}  // namespace sis
