#include "kernels/testing/scalar_backend.h"

#include <algorithm>
#include <limits>

#include "kernels/numerics/philox.h"

namespace sis {
namespace {

// Returns the results over the slots, as the REDUCED form gives them.
SlotsResult SlotsOfReduced(float log_envelope, float covered_mass) {
  return {{Flush(log_envelope), covered_mass},
          log_envelope < std::numeric_limits<float>::infinity() && IsMass(covered_mass)};
}

// Computes half the L1 distance of the two policies on V_k. Slots are added most probable first.
struct TotalVariationAccumulator {
  float l1_distance = 0.0f;

  // See EnvelopeAccumulator::Add.
  void Add(float behavior_log_prob, float current_log_prob) {
    if (behavior_log_prob == kMinusInfinity || !IsLogProb(current_log_prob)) return;
    const float difference = Exp32(current_log_prob) - Exp32(behavior_log_prob);
    l1_distance = l1_distance + (difference < 0.0f ? -difference : difference);
  }
  // Returns at most 1, although both masses may be slightly larger.
  float Finish() const {
    const float half = 0.5f * l1_distance;
    return half < 1.0f ? half : 1.0f;
  }
};

// Adds a scored position to a point of the prefix curve. `envelope` is over the point's k slots.
void AddPrefix(Envelope envelope, PrefixSums& sums) {
  sums.residual_mass += Fixed(ResidualMass(envelope));
  sums.expected_acceptance += Fixed(ExpectedAcceptance(envelope));
}

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
