#include "kernels/scalar_backend.h"

#include "kernels/philox.h"

namespace sis {
namespace {

Envelope GatheredEnvelope(const LogProbReader& behavior, const LogProbReader& current,
                          size_t position, size_t top_k) {
  EnvelopeAccumulator accumulator;
  for (size_t slot = 0; slot < top_k; ++slot) {
    accumulator.Add(behavior.At(position, slot), current.At(position, slot));
  }
  return accumulator.Finish();
}

void EvaluateSegment(const EvaluateParameters& parameters, const Segment& segment) {
  const BehaviorView& behavior = segment.behavior;
  const CurrentView& current = segment.current;
  const OutputView& output = segment.output;
  const size_t slots = parameters.slots;
  const size_t top_k = parameters.top_k;
  const LogProbReader behavior_log_probs(behavior.log_probs, behavior.grouped_log_probs, slots);
  const LogProbReader current_log_probs(current.log_probs, current.grouped_log_probs, slots);

  Sums sums;
  PhiloxBlock uniforms{};
  for (size_t i = 0; i < behavior.sampled_log_probs.size(); ++i) {
    const uint32_t position = segment.first_position + static_cast<uint32_t>(i);
    if (i == 0 || position % 4 == 0) {
      uniforms = AcceptanceUniforms(segment.sequence_key, position / 4, parameters.draw);
    }
    const Envelope envelope =
        current.reduced() ? Envelope{Flush(current.log_envelopes[i]), current.covered_masses[i]}
                          : GatheredEnvelope(behavior_log_probs, current_log_probs, i, top_k);
    const PositionResult result =
        Decide(behavior.sampled_log_probs[i], current.sampled_log_probs[i], envelope,
               behavior.sampled_ranks[i] < top_k, uniforms.word[position % 4]);
    AddPosition(result, envelope, sums);

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
