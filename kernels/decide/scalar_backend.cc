#include "kernels/decide/scalar_backend.h"

#include <algorithm>

#include "kernels/numerics/philox.h"

namespace sis {
namespace {

// Evaluates the slots of position i. `used` is the index of its first slot among the used slots of
// all positions. Adds the sums that need slots: the curve and the total variation.
SlotsResult GatheredSlots(const EvaluateParameters& parameters, const BackendRange& range, size_t i,
                          size_t used, Sums& sums) {
  const size_t count = range.behavior.counts[i];
  const size_t top_k = std::min<size_t>(count, parameters.top_k);
  EnvelopeAccumulator accumulator;
  TotalVariationAccumulator total_variation;
  size_t point = 0;
  for (size_t slot = 0; slot < top_k; ++slot) {
    const float behavior = range.behavior.LogProbAt(i, used + slot);
    const float current = range.current.log_probs[used + slot];
    accumulator.Add(behavior, current);
    if (parameters.total_variation) total_variation.Add(behavior, current);
    if (point < range.prefix_sums.size() &&
        static_cast<int>(slot + 1) == parameters.prefix_curve[point]) {
      AddPrefix(accumulator.Finish(), range.prefix_sums[point++]);
    }
  }
  const Envelope envelope = accumulator.Finish();
  for (; point < range.prefix_sums.size(); ++point) {
    AddPrefix(envelope, range.prefix_sums[point]);
  }
  // Slots beyond top_k must only be valid.
  for (size_t slot = top_k; slot < count; ++slot) {
    accumulator.Add(range.behavior.LogProbAt(i, used + slot), range.current.log_probs[used + slot]);
  }
  sums.total_variation += Fixed(total_variation.Finish());
  return {envelope, accumulator.valid()};
}

void EvaluateRange(const EvaluateParameters& parameters, const BackendRange& range) {
  const BlockRange& behavior = range.behavior;
  const CurrentView& current = range.current;
  const int top_k = std::min(parameters.top_k, kMaxBlockSlots);

  Sums sums;
  PhiloxBlock uniforms{};
  size_t used = 0;
  for (size_t i = 0; i < behavior.size(); used += behavior.counts[i++]) {
    const uint32_t position = range.first_position + static_cast<uint32_t>(i);
    if (i == 0 || position % 4 == 0) {
      uniforms = AcceptanceUniforms(range.sequence_key, position / 4, parameters.draw);
    }
    const SlotsResult slots =
        current.reduced() ? SlotsOfReduced(current.log_envelopes[i], current.covered_masses[i])
                          : GatheredSlots(parameters, range, i, used, sums);
    if (!IsValid(current.sampled_log_probs[i], slots)) {
      ++sums.invalid;
      continue;
    }
    const PositionResult result =
        Decide(behavior.sampled_log_probs[i], current.sampled_log_probs[i], slots.envelope,
               behavior.ranks[i] < top_k, uniforms.word[position % 4]);
    AddPosition(result, slots.envelope, sums);
    range.output.Store(i, result, slots.envelope);
  }
  *range.sums += sums;
}

}  // namespace

void ScalarBackend::Evaluate(const EvaluateParameters& parameters,
                             std::span<const BackendRange> ranges) const {
  for (const BackendRange& range : ranges) EvaluateRange(parameters, range);
}

}  // namespace sis
