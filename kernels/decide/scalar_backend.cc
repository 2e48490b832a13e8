#include "kernels/decide/scalar_backend.h"

#include <algorithm>

#include "kernels/numerics/philox.h"

namespace sis {
namespace {

// Evaluates the slots of position i, whose first slot has the index `used` among the used slots of
// all positions. Adds the results that only slots give: the curve and the total variation.
SlotsResult GatheredSlots(const EvaluateParameters& parameters, const Stretch& stretch, size_t i,
                          size_t used, Sums& sums) {
  const size_t count = stretch.behavior.counts[i];
  const size_t top_k = std::min<size_t>(count, parameters.top_k);
  EnvelopeAccumulator accumulator;
  TotalVariationAccumulator total_variation;
  size_t point = 0;
  for (size_t slot = 0; slot < top_k; ++slot) {
    const float behavior = stretch.behavior.LogProbAt(i, used + slot);
    const float current = stretch.current.log_probs[used + slot];
    accumulator.Add(behavior, current);
    if (parameters.total_variation) total_variation.Add(behavior, current);
    if (point < stretch.prefix_sums.size() &&
        static_cast<int>(slot + 1) == parameters.prefix_curve[point]) {
      AddPrefix(accumulator.Finish(), stretch.prefix_sums[point++]);
    }
  }
  const Envelope envelope = accumulator.Finish();
  for (; point < stretch.prefix_sums.size(); ++point) {
    AddPrefix(envelope, stretch.prefix_sums[point]);
  }
  // The rest only has to be valid.
  for (size_t slot = top_k; slot < count; ++slot) {
    accumulator.Add(stretch.behavior.LogProbAt(i, used + slot),
                    stretch.current.log_probs[used + slot]);
  }
  sums.total_variation += Fixed(total_variation.Finish());
  return {envelope, accumulator.valid()};
}

void EvaluateStretch(const EvaluateParameters& parameters, const Stretch& stretch) {
  const BlockRange& behavior = stretch.behavior;
  const CurrentView& current = stretch.current;
  const int top_k = std::min(parameters.top_k, kMaxBlockSlots);

  Sums sums;
  PhiloxBlock uniforms{};
  size_t used = 0;
  for (size_t i = 0; i < behavior.size(); used += behavior.counts[i++]) {
    const uint32_t position = stretch.first_position + static_cast<uint32_t>(i);
    if (i == 0 || position % 4 == 0) {
      uniforms = AcceptanceUniforms(stretch.sequence_key, position / 4, parameters.draw);
    }
    const SlotsResult slots =
        current.reduced() ? SlotsOfReduced(current.log_envelopes[i], current.covered_masses[i])
                          : GatheredSlots(parameters, stretch, i, used, sums);
    if (!IsValid(current.sampled_log_probs[i], slots)) {
      ++sums.invalid;
      continue;
    }
    const PositionResult result =
        Decide(behavior.sampled_log_probs[i], current.sampled_log_probs[i], slots.envelope,
               behavior.ranks[i] < top_k, uniforms.word[position % 4]);
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
