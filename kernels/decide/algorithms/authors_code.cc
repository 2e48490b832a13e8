#include "kernels/decide/algorithms/authors_code.h"

#include "kernels/numerics/philox.h"

namespace sis {
namespace {

void EvaluateSegment(const AuthorsCode& code, const EvaluateParameters& parameters,
                     const Segment& segment) {
  const BehaviorView& behavior = segment.behavior;
  const CurrentView& current = segment.current;
  const OutputView& output = segment.output;
  const LogProbReader behavior_log_probs(behavior.log_probs, behavior.grouped_log_probs,
                                         parameters.slots);
  const LogProbReader current_log_probs(current.log_probs, current.grouped_log_probs,
                                        parameters.slots, current.float16_log_probs);
  for (size_t i = 0; i < behavior.sampled_log_probs.size(); ++i) {
    const uint32_t position = segment.first_position + static_cast<uint32_t>(i);
    Envelope envelope;
    if (current.reduced()) {
      envelope = {Flush(current.log_envelopes[i]), current.covered_masses[i]};
    } else {
      EnvelopeAccumulator accumulator;
      for (int slot = 0; slot < parameters.top_k; ++slot) {
        accumulator.Add(behavior_log_probs.At(i, slot), current_log_probs.At(i, slot));
      }
      envelope = accumulator.Finish();
    }
    const PhiloxBlock uniforms =
        AcceptanceUniforms(segment.sequence_key, position / 4, parameters.draw);
    const PositionResult result =
        AuthorsCode::Decide(behavior.sampled_log_probs[i], current.sampled_log_probs[i],
                            envelope.log_envelope, uniforms.word[position % 4]);
    Sums sums;
    AddPosition(result, envelope, sums);
    sums.d_sis = code.ModifiedDeviation(result);
    *segment.sums += sums;

    output.decisions[i] = result.decision;
    if (!output.acceptance_probabilities.empty()) {
      output.acceptance_probabilities[i] = result.acceptance_probability;
    }
    if (!output.log_modified_ratios.empty()) {
      output.log_modified_ratios[i] = result.log_modified_ratio();
    }
    if (!output.modified_ratios.empty()) output.modified_ratios[i] = result.modified_ratio();
  }
}

}  // namespace

void EvaluateAuthorsCode(const AuthorsCode& code, const EvaluateParameters& parameters,
                         std::span<const Segment> segments) {
  for (const Segment& segment : segments) EvaluateSegment(code, parameters, segment);
}

}  // namespace sis
