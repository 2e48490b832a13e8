#include "kernels/decide/algorithms/authors_code.h"

#include "kernels/numerics/philox.h"

namespace sis {
namespace {

void EvaluateStretch(const AuthorsCode& code, const EvaluateParameters& parameters,
                     const Stretch& stretch) {
  const BehaviorView& behavior = stretch.behavior;
  const CurrentView& current = stretch.current;
  const LogProbReader behavior_log_probs = behavior.Reader(parameters.slots);
  const CurrentReader current_log_probs(current, parameters.slots);
  for (size_t i = 0; i < behavior.sampled_log_probs.size(); ++i) {
    const uint32_t position = stretch.first_position + static_cast<uint32_t>(i);
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
        AcceptanceUniforms(stretch.sequence_key, position / 4, parameters.draw);
    const PositionResult result =
        AuthorsCode::Decide(behavior.sampled_log_probs[i], current.sampled_log_probs[i],
                            envelope.log_envelope, uniforms.word[position % 4]);
    Sums sums;
    AddPosition(result, envelope, sums);
    sums.d_sis = code.ModifiedDeviation(result);
    *stretch.sums += sums;
    stretch.output.Store(i, result, envelope);
  }
}

}  // namespace

void EvaluateAuthorsCode(const AuthorsCode& code, const EvaluateParameters& parameters,
                         std::span<const Stretch> stretches) {
  for (const Stretch& stretch : stretches) EvaluateStretch(code, parameters, stretch);
}

}  // namespace sis
