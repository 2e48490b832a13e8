// Defines the decision at one position exactly (docs/numerics.md, sections 4, 5 and 7). All
// backends, on host and device, share it; they differ only in how they traverse the arrays.
#pragma once

#include <cstdint>

#include "kernels/numerics/exp32.h"
#include "kernels/numerics/host_device.h"
#include "kernels/numerics/log_prob.h"
#include "kernels/numerics/sums.h"

namespace sis {

// The values of sis.v1.Decision. Backends return only the first three.
enum class Decision : uint8_t {
  kAccepted = 1,
  kRejected = 2,
  kOutsideTopK = 3,
  kMissing = 4,
  kMasked = 5
};

// Summary of the current policy's values at V_k.
struct Envelope {
  // log M: the maximum of log p - log q over the used slots; -inf if there is none.
  float log_envelope;
  // Sum of p over the used slots, added in the order of the ranks.
  float covered_mass;
};

// Computes an Envelope from the slots, which are added most probable first.
struct EnvelopeAccumulator {
  float max_log_ratio = kMinusInfinity;
  float covered_mass = 0.0f;
  bool all_log_probs = true;

  // An invalid current_log_prob makes the position's slots invalid. A behavior_log_prob of -inf
  // adds nothing; callers that add several slots at once use it for padding, and no used slot has
  // it.
  SIS_HOST_DEVICE void Add(float behavior_log_prob, float current_log_prob) {
    if (behavior_log_prob == kMinusInfinity) return;
    if (!IsLogProb(current_log_prob)) {
      all_log_probs = false;
      return;
    }
    const float log_ratio = current_log_prob - behavior_log_prob;
    max_log_ratio = log_ratio > max_log_ratio ? log_ratio : max_log_ratio;
    covered_mass = covered_mass + Exp32(current_log_prob);
  }
  SIS_HOST_DEVICE Envelope Finish() const { return {Flush(max_log_ratio), covered_mass}; }
  // Returns true if the current values so far can be log-probs of different tokens (section 2).
  SIS_HOST_DEVICE bool valid() const { return all_log_probs && IsMass(covered_mass); }
};

// Results over the slots of a position.
struct SlotsResult {
  Envelope envelope;  // of the first k
  bool valid;         // whether all slots are valid, also beyond k
};

// Returns true if the current policy's values at a position are valid (section 2).
SIS_HOST_DEVICE inline bool IsValid(float current_sampled_log_prob, const SlotsResult& slots) {
  return slots.valid && IsLogProb(current_sampled_log_prob);
}

// Returns xi, the current policy's mass outside of V_k.
SIS_HOST_DEVICE inline float ResidualMass(Envelope envelope) {
  const float residual = 1.0f - envelope.covered_mass;
  return residual > 0.0f ? residual : 0.0f;
}

// Returns (1 - xi) / M, the expected accept rate of the position.
SIS_HOST_DEVICE inline float ExpectedAcceptance(Envelope envelope) {
  if (envelope.log_envelope == kMinusInfinity) return 0.0f;
  const float expected = Flush(envelope.covered_mass) * Exp32(-envelope.log_envelope);
  return expected < 1.0f ? expected : 1.0f;
}

struct PositionResult {
  Decision decision;
  bool envelope_violation;
  // a, the probability of acceptance.
  float acceptance_probability;
  // log w, the logarithm of the unmodified importance ratio.
  float log_ratio;

  SIS_HOST_DEVICE float log_modified_ratio() const {
    return decision == Decision::kAccepted ? 0.0f : log_ratio;
  }
  SIS_HOST_DEVICE float modified_ratio() const {
    return decision == Decision::kAccepted ? 1.0f : Exp32(log_ratio);
  }
};

// Decides a position. `uniform` is its word of AcceptanceUniforms. `in_top_k` is true if the
// sampled token is in V_k.
SIS_HOST_DEVICE inline PositionResult Decide(float behavior_sampled_log_prob,
                                             float current_sampled_log_prob, Envelope envelope,
                                             bool in_top_k, uint32_t uniform) {
  PositionResult result{Decision::kOutsideTopK, false, 0.0f,
                        Flush(current_sampled_log_prob - behavior_sampled_log_prob)};
  if (!in_top_k) return result;
  if (current_sampled_log_prob == kMinusInfinity) {
    result.acceptance_probability = 0.0f;
  } else if (result.log_ratio > envelope.log_envelope) {
    result.acceptance_probability = 1.0f;
    result.envelope_violation = true;
  } else {
    result.acceptance_probability = Exp32(Flush(result.log_ratio - envelope.log_envelope));
  }
  const auto threshold = static_cast<uint64_t>(result.acceptance_probability * 0x1p32f);
  result.decision = uniform < threshold ? Decision::kAccepted : Decision::kRejected;
  return result;
}

// Adds a scored position to the sums, except the total variation, which needs the slots.
SIS_HOST_DEVICE inline void AddPosition(const PositionResult& result, Envelope envelope,
                                        Sums& sums) {
  const bool accepted = result.decision == Decision::kAccepted;
  const int64_t deviation = Fixed(result.log_ratio < 0 ? -result.log_ratio : result.log_ratio);
  sums.accepted += accepted;
  sums.rejected += result.decision == Decision::kRejected;
  sums.outside_top_k += result.decision == Decision::kOutsideTopK;
  sums.envelope_violations += result.envelope_violation;
  sums.d += deviation;
  sums.d_sis += accepted ? 0 : deviation;
  sums.log_envelope += Fixed(envelope.log_envelope);
  sums.residual_mass += Fixed(ResidualMass(envelope));
  sums.acceptance_probability += Fixed(result.acceptance_probability);
  sums.expected_acceptance += Fixed(ExpectedAcceptance(envelope));
  sums.k3 += Fixed(Excess32(result.log_ratio));
}

}  // namespace sis
