// One position through the codec, and the law of its accepted tokens, by enumeration. For tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/decide/scalar_backend.h"
#include "kernels/records/log_probs.h"
#include "kernels/records/packed_values.h"
#include "kernels/testing/decoded_log_probs.h"
#include "kernels/testing/random_positions.h"

namespace sis {

// One position after its recorded row went through the codec.
struct Encoded {
  std::vector<float> behavior;  // [K]
  std::vector<float> current;   // [K]
  uint16_t used;
  float behavior_step;  // the largest by which a slot may have moved
  Envelope envelope;
};

inline std::vector<float> Decode(LogProbEncoding encoding, std::span<const std::byte> bytes,
                                 int slots) {
  std::vector<float> log_probs(slots);
  DecodeLogProbs(encoding, bytes, slots, log_probs);
  return log_probs;
}

// The distance between neighbouring values at the lowest finite one.
inline float LargestStep(LogProbEncoding encoding, std::span<const std::byte> bytes,
                         std::span<const float> decoded) {
  if (encoding == LogProbEncoding::kFloat32) return 0;
  if (encoding == LogProbEncoding::kFixed12) {
    return std::ldexp(static_cast<float>(PackedValues(bytes, kMultiplierBits).At(0)), -18);
  }
  float lowest = 0;
  for (const float value : decoded) lowest = std::isinf(value) ? lowest : std::min(lowest, value);
  return std::ldexp(1.0f, std::max(std::ilogb(lowest), -14) - 10);
}

inline Encoded Encode(LogProbEncoding behavior_encoding, const RandomPosition& position) {
  const auto slots = static_cast<int>(position.behavior.size());
  std::vector<std::byte> behavior(LogProbBytes(behavior_encoding, 1, slots));
  Encoded encoded;
  const std::span<uint16_t> used(&encoded.used, 1);
  EncodeBehaviorLogProbs(behavior_encoding, position.behavior, slots, used, behavior);
  encoded.behavior = Decode(behavior_encoding, behavior, slots);
  encoded.current = position.current;
  std::fill(encoded.current.begin() + encoded.used, encoded.current.end(), kMinusInfinity);
  encoded.behavior_step = LargestStep(behavior_encoding, behavior, encoded.behavior);
  EnvelopeAccumulator accumulator;
  for (int slot = 0; slot < slots; ++slot) {
    accumulator.Add(encoded.behavior[slot], encoded.current[slot]);
  }
  encoded.envelope = accumulator.Finish();
  return encoded;
}

// By enumeration: whatever v is drawn, q(v) a(v) M' = p(v), up to float32. The two subtractions on
// the way to a are off by half a unit in the last place each, the exponential by one.
inline void ExpectLaw(float behavior, float current, float acceptance, float log_envelope) {
  if (current == kMinusInfinity) {
    ASSERT_EQ(acceptance, 0.0f);
    return;
  }
  const float log_ratio = current - behavior;
  const float exponent = log_ratio - log_envelope;
  ASSERT_LE(exponent, 0.0f) << "envelope violation";
  if (exponent < -87.0f) {
    ASSERT_EQ(acceptance, 0.0f);
    return;
  }
  const double bound = 0x1p-24 * (std::abs(log_ratio) + std::abs(exponent)) + 0x1p-23;
  const double error = static_cast<double>(behavior) + std::log(static_cast<double>(acceptance)) +
                       static_cast<double>(log_envelope) - static_cast<double>(current);
  ASSERT_LE(std::abs(error), bound + 0x1p-99) << behavior << " " << current;
}

// The sets of y = every v of V_K as one stretch, evaluated by the backend.
struct EveryDraw {
  std::vector<float> behavior_sampled;
  std::vector<float> current_sampled;
  std::vector<uint16_t> ranks;
  std::vector<Decision> decisions;
  std::vector<float> acceptance;
  Sums sums;

  EveryDraw(const RandomPosition& position, size_t used)
      : behavior_sampled(used),
        current_sampled(used),
        ranks(used),
        decisions(used),
        acceptance(used) {
    std::copy_n(position.behavior.begin(), used, behavior_sampled.begin());
    std::copy_n(position.current.begin(), used, current_sampled.begin());
    std::iota(ranks.begin(), ranks.end(), uint16_t{0});
  }

  void Evaluate(int slots, std::span<const float> behavior, const CurrentView& current) {
    const Stretch stretch{
        .sequence_key = 1,
        .first_position = 0,
        .behavior = {behavior, behavior_sampled, ranks},
        .current = current,
        .output = {.decisions = decisions, .acceptance_probabilities = acceptance},
        .sums = &sums};
    ScalarBackend().Evaluate({.slots = slots, .top_k = slots, .draw = 1}, {&stretch, 1});
  }

  void ExpectLawFor(float log_envelope) const {
    for (size_t v = 0; v < ranks.size() && !testing::Test::HasFatalFailure(); ++v) {
      ExpectLaw(behavior_sampled[v], current_sampled[v], acceptance[v], log_envelope);
    }
    ASSERT_EQ(sums.envelope_violations, 0);
  }
};

}  // namespace sis
