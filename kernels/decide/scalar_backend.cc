#include "kernels/decide/scalar_backend.h"

#include "kernels/numerics/philox.h"

namespace sis {
namespace {

// Adds what only the slots tell: the curve and the total variation.
SlotsResult GatheredSlots(const EvaluateParameters& parameters, const LogProbReader& behavior,
                          const CurrentReader& current, size_t position, Sums& sums,
                          std::span<PrefixSums> prefix_sums) {
  EnvelopeAccumulator accumulator;
  TotalVariationAccumulator total_variation;
  size_t point = 0;
  for (int slot = 0; slot < parameters.top_k; ++slot) {
    const float behavior_log_prob = behavior.At(position, slot);
    const float current_log_prob = current.At(position, slot);
    accumulator.Add(behavior_log_prob, current_log_prob);
    if (parameters.total_variation) total_variation.Add(behavior_log_prob, current_log_prob);
    if (point < prefix_sums.size() && slot + 1 == parameters.prefix_curve[point]) {
      AddPrefix(accumulator.Finish(), prefix_sums[point++]);
    }
  }
  const Envelope envelope = accumulator.Finish();
  for (int slot = parameters.top_k; slot < parameters.slots; ++slot) {
    accumulator.Add(behavior.At(position, slot), current.At(position, slot));
  }
  sums.total_variation += Fixed(total_variation.Finish());
  return {envelope, accumulator.valid()};
}

void EvaluateStretch(const EvaluateParameters& parameters, const Stretch& stretch) {
  const BehaviorView& behavior = stretch.behavior;
  const CurrentView& current = stretch.current;
  const size_t top_k = parameters.top_k;
  const LogProbReader behavior_log_probs = behavior.Reader(parameters.slots);
  const CurrentReader current_log_probs(current, parameters.slots);

  Sums sums;
  PhiloxBlock uniforms{};
  for (size_t i = 0; i < behavior.sampled_log_probs.size(); ++i) {
    const uint32_t position = stretch.first_position + static_cast<uint32_t>(i);
    if (i == 0 || position % 4 == 0) {
      uniforms = AcceptanceUniforms(stretch.sequence_key, position / 4, parameters.draw);
    }
    const SlotsResult slots =
        current.reduced() ? SlotsOfReduced(current.log_envelopes[i], current.covered_masses[i])
                          : GatheredSlots(parameters, behavior_log_probs, current_log_probs, i,
                                          sums, stretch.prefix_sums);
    if (!IsValid(current.sampled_log_probs[i], slots)) {
      ++sums.invalid;
      continue;
    }
    const PositionResult result =
        Decide(behavior.sampled_log_probs[i], current.sampled_log_probs[i], slots.envelope,
               behavior.sampled_ranks[i] < top_k, uniforms.word[position % 4]);
    AddPosition(result, slots.envelope, sums);
    stretch.output.Store(i, result, slots.envelope);
  }
  *stretch.sums += sums;
}

}  // namespace

void ScalarBackend::Evaluate(const EvaluateParameters& parameters,
                             std::span<const Stretch> stretches) const {
  for (const Stretch& stretch : stretches) EvaluateStretch(parameters, stretch);
}

}  // namespace sis
