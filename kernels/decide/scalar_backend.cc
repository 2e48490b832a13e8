#include "kernels/decide/scalar_backend.h"

#include "kernels/numerics/philox.h"

namespace sis {
namespace {

// Adds what only the slots tell: the curve and the total variation.
SlotsResult GatheredSlots(const EvaluateParameters& parameters, const LogProbReader& behavior,
                          const LogProbReader& current, size_t position, Sums& sums,
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

void EvaluateSegment(const EvaluateParameters& parameters, const Segment& segment) {
  const BehaviorView& behavior = segment.behavior;
  const CurrentView& current = segment.current;
  const OutputView& output = segment.output;
  const size_t row_length = parameters.slots;
  const size_t top_k = parameters.top_k;
  const LogProbReader behavior_log_probs(behavior.log_probs, behavior.grouped_log_probs,
                                         row_length);
  const LogProbReader current_log_probs(current.log_probs, current.grouped_log_probs, row_length,
                                        current.float16_log_probs);

  Sums sums;
  PhiloxBlock uniforms{};
  for (size_t i = 0; i < behavior.sampled_log_probs.size(); ++i) {
    const uint32_t position = segment.first_position + static_cast<uint32_t>(i);
    if (i == 0 || position % 4 == 0) {
      uniforms = AcceptanceUniforms(segment.sequence_key, position / 4, parameters.draw);
    }
    const SlotsResult slots =
        current.reduced() ? SlotsOfReduced(current.log_envelopes[i], current.covered_masses[i])
                          : GatheredSlots(parameters, behavior_log_probs, current_log_probs, i,
                                          sums, segment.prefix_sums);
    if (!IsValid(current.sampled_log_probs[i], slots)) {
      ++sums.invalid;
      continue;
    }
    const PositionResult result =
        Decide(behavior.sampled_log_probs[i], current.sampled_log_probs[i], slots.envelope,
               behavior.sampled_ranks[i] < top_k, uniforms.word[position % 4]);
    AddPosition(result, slots.envelope, sums);

    output.decisions[i] = result.decision;
    if (!output.acceptance_probabilities.empty()) {
      output.acceptance_probabilities[i] = result.acceptance_probability;
    }
    if (!output.log_modified_ratios.empty()) {
      output.log_modified_ratios[i] = result.log_modified_ratio();
    }
    if (!output.modified_ratios.empty()) output.modified_ratios[i] = result.modified_ratio();
  }
  *segment.sums += sums;
}

}  // namespace

void ScalarBackend::Evaluate(const EvaluateParameters& parameters,
                             std::span<const Segment> segments) const {
  for (const Segment& segment : segments) EvaluateSegment(parameters, segment);
}

}  // namespace sis
