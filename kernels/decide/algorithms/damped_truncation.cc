#include "kernels/decide/algorithms/damped_truncation.h"

#include <cstddef>

namespace sis {

void DampedTruncation::Apply(const AlgorithmInput& batch, const AlgorithmOutput& output) const {
  for (size_t i = 0; i < batch.states.size(); ++i) {
    float weight = 0.0f;
    if (batch.states[i] != TokenState::kMasked) {
      weight = Weight(Exp32(batch.log_importance_ratios[i]), batch.acceptance_probabilities[i],
                      batch.advantages[i]);
    }
    if (!output.surrogates.empty()) output.surrogates[i] = weight;
    if (!output.coefficients.empty()) output.coefficients[i] = weight;
  }
}

}  // namespace sis
