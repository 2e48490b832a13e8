#include "kernels/decide/algorithms/budgeted_rejection.h"

#include "kernels/numerics/log_prob.h"
#include "kernels/numerics/philox.h"

namespace sis {
namespace {

void DecideStretch(const BudgetedRejection& rejection, uint64_t draw, const Stretch& stretch,
                   Sums& sums) {
  const OutputView& output = stretch.output;
  PhiloxBlock uniforms{};
  for (size_t i = 0; i < output.decisions.size(); ++i) {
    const uint32_t position = stretch.first_position + static_cast<uint32_t>(i);
    if (i == 0 || position % 4 == 0) {
      uniforms = AcceptanceUniforms(stretch.sequence_key, position / 4, draw);
    }
    const float log_ratio = output.log_ratios[i];
    const float a = rejection.AcceptanceProbability(log_ratio);
    const bool accepted = uniforms.word[position % 4] < static_cast<uint64_t>(a * 0x1p32f);
    const float log_modified = accepted ? rejection.LogAcceptedRatio(log_ratio) : kMinusInfinity;
    output.decisions[i] = accepted ? Decision::kAccepted : Decision::kRejected;
    output.acceptance_probabilities[i] = a;
    output.log_modified_ratios[i] = log_modified;
    output.modified_ratios[i] = Exp32(log_modified);
    sums.accepted += accepted;
    sums.rejected += !accepted;
    sums.d_sis += accepted ? 0 : Fixed(log_ratio < 0.0f ? -log_ratio : log_ratio);
    sums.acceptance_probability += Fixed(a);
  }
}

}  // namespace

void DecideWithinBudget(const BudgetedRejection& rejection, uint64_t draw,
                        std::span<const Stretch> stretches, Sums& sums) {
  sums.accepted = sums.rejected = sums.outside_top_k = 0;
  sums.d_sis = sums.acceptance_probability = 0;
  for (const Stretch& stretch : stretches) DecideStretch(rejection, draw, stretch, sums);
  // Without the sum over all tokens, the drawn one's a is what tells of its mean.
  sums.expected_acceptance = sums.acceptance_probability;
}

void ComputeNormalizers(const BudgetedRejection& rejection, const EvaluateParameters& parameters,
                        const Stretch& stretch, std::span<float> normalizers) {
  const LogProbReader behavior_log_probs = stretch.behavior.Reader(parameters.slots);
  const CurrentReader current_log_probs(stretch.current, parameters.slots);
  for (size_t i = 0; i < normalizers.size(); ++i) {
    float normalizer = 0.0f;
    for (int slot = 0; slot < parameters.top_k; ++slot) {
      const float behavior = behavior_log_probs.At(i, slot);
      if (behavior == kMinusInfinity) break;  // unused, as all that follow
      const float budgeted = current_log_probs.At(i, slot) - rejection.log_lambda;
      normalizer = normalizer + Exp32(behavior < budgeted ? behavior : budgeted);
    }
    normalizers[i] = normalizer;
  }
}

}  // namespace sis
