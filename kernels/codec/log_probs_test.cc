// What one-sided rounding promises: never an envelope below the true one, and the exact law of
// accepted tokens.
#include "kernels/codec/log_probs.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/codec/fixed12.h"
#include "kernels/codec/random_positions.h"
#include "kernels/scalar_backend.h"

namespace sis {
namespace {

using enum LogProbEncoding;

// One position after both of its rows went through the codec.
struct Encoded {
  std::vector<float> behavior;  // [K]
  std::vector<float> current;   // [K]
  uint8_t used;
  float behavior_step;  // the largest by which a slot may have moved
  float current_step;
  Envelope envelope;
};

std::vector<float> Decode(LogProbEncoding encoding, std::span<const std::byte> bytes, int slots) {
  std::vector<float> log_probs(slots);
  DecodeLogProbs(encoding, bytes, slots, log_probs);
  return log_probs;
}

// The distance between neighbouring values at the lowest finite one.
float LargestStep(LogProbEncoding encoding, std::span<const std::byte> bytes,
                  std::span<const float> decoded) {
  if (encoding == kFloat32) return 0;
  if (encoding == kFixed12) {
    return std::ldexp(static_cast<float>(GroupDecoder(encoding, bytes).multipliers()[0]), -18);
  }
  float lowest = 0;
  for (const float value : decoded) lowest = std::isinf(value) ? lowest : std::min(lowest, value);
  return std::ldexp(1.0f, std::max(std::ilogb(lowest), -14) - 10);
}

Encoded Encode(LogProbEncoding behavior_encoding, LogProbEncoding current_encoding,
               const RandomPosition& position) {
  const auto slots = static_cast<int>(position.behavior.size());
  std::vector<std::byte> behavior(LogProbBytes(behavior_encoding, 1, slots));
  std::vector<std::byte> current(LogProbBytes(current_encoding, 1, slots));
  Encoded encoded;
  const std::span<uint8_t> used(&encoded.used, 1);
  EncodeBehaviorLogProbs(behavior_encoding, position.behavior, slots, used, behavior);
  EncodeCurrentLogProbs(current_encoding, position.current, slots, used, current);
  encoded.behavior = Decode(behavior_encoding, behavior, slots);
  encoded.current = Decode(current_encoding, current, slots);
  encoded.behavior_step = LargestStep(behavior_encoding, behavior, encoded.behavior);
  encoded.current_step = LargestStep(current_encoding, current, encoded.current);
  EnvelopeAccumulator accumulator;
  for (int slot = 0; slot < slots; ++slot) {
    accumulator.Add(encoded.behavior[slot], encoded.current[slot]);
  }
  encoded.envelope = accumulator.Finish();
  return encoded;
}

using Pair = std::tuple<LogProbEncoding, LogProbEncoding>;

class EncodingPairTest : public testing::TestWithParam<Pair> {
 protected:
  // Twelve thousand positions for each of the nine pairs.
  template <typename Function>
  void ForEachPosition(const Function& function) {
    RandomPositions positions(7);
    for (int i = 0; i < 12000 && !HasFatalFailure(); ++i) {
      const size_t slots =
          positions.Below(4) == 0 ? 1 + positions.Below(128) : 1 + positions.Below(20);
      const RandomPosition position = positions.Next(slots);
      function(position, Encode(std::get<0>(GetParam()), std::get<1>(GetParam()), position));
    }
  }
};

TEST_P(EncodingPairTest, MovesEverySlotToTheSafeSideByAtMostOneStep) {
  ForEachPosition([](const RandomPosition& position, const Encoded& encoded) {
    ASSERT_LE(encoded.used, position.used);
    for (size_t slot = 0; slot < position.used; ++slot) {
      const float behavior = position.behavior[slot];
      const float current = position.current[slot];
      if (slot >= encoded.used) {
        ASSERT_LT(behavior, kFixed12Floor);
        ASSERT_EQ(encoded.behavior[slot], kMinusInfinity);
        continue;
      }
      ASSERT_LE(encoded.behavior[slot], behavior);
      ASSERT_LE(behavior - encoded.behavior[slot], encoded.behavior_step);
      ASSERT_TRUE(slot == 0 || encoded.behavior[slot] <= encoded.behavior[slot - 1]);
      ASSERT_GE(encoded.current[slot], current);
      if (current == kMinusInfinity) {
        ASSERT_EQ(encoded.current[slot], kMinusInfinity);
      } else if (current >= kFixed12Floor) {
        ASSERT_LE(encoded.current[slot] - current, encoded.current_step);
      } else {
        ASSERT_LE(encoded.current[slot], kFixed12Floor + encoded.current_step);
      }
    }
    for (size_t slot = position.used; slot < position.behavior.size(); ++slot) {
      ASSERT_EQ(encoded.behavior[slot], kMinusInfinity);
      ASSERT_EQ(encoded.current[slot], kMinusInfinity);
    }
  });
}

TEST_P(EncodingPairTest, TheEnvelopeIsNeverBelowTheTrueOne) {
  ForEachPosition([](const RandomPosition& position, const Encoded& encoded) {
    EnvelopeAccumulator accumulator;
    for (size_t slot = 0; slot < encoded.used; ++slot) {
      accumulator.Add(position.behavior[slot], position.current[slot]);
    }
    ASSERT_GE(encoded.envelope.log_envelope, accumulator.Finish().log_envelope);
  });
}

// By enumeration: whatever v is drawn, q(v) a(v) M' = p(v), up to float32. The two subtractions on
// the way to a are off by half a unit in the last place each, the exponential by one.
void ExpectLaw(float behavior, float current, float acceptance, float log_envelope) {
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

// The sets of y = every v of V_K as one segment, evaluated by the backend.
struct EveryDraw {
  std::vector<float> behavior_sampled;
  std::vector<float> current_sampled;
  std::vector<uint8_t> ranks;
  std::vector<Decision> decisions;
  std::vector<float> acceptance;
  Sums sums;

  EveryDraw(const RandomPosition& position, size_t used)
      : behavior_sampled(position.behavior.begin(), position.behavior.begin() + used),
        current_sampled(position.current.begin(), position.current.begin() + used),
        ranks(used),
        decisions(used),
        acceptance(used) {
    for (size_t rank = 0; rank < used; ++rank) ranks[rank] = static_cast<uint8_t>(rank);
  }

  void Evaluate(int slots, std::span<const float> behavior, const CurrentView& current) {
    const Segment segment{
        .sequence_key = 1,
        .first_position = 0,
        .behavior = {behavior, behavior_sampled, ranks},
        .current = current,
        .output = {.decisions = decisions, .acceptance_probabilities = acceptance},
        .sums = &sums};
    ScalarBackend().Evaluate({.slots = slots, .top_k = slots, .draw = 1}, {&segment, 1});
  }

  void ExpectLawFor(float log_envelope) const {
    for (size_t v = 0; v < ranks.size() && !testing::Test::HasFatalFailure(); ++v) {
      ExpectLaw(behavior_sampled[v], current_sampled[v], acceptance[v], log_envelope);
    }
    ASSERT_EQ(sums.envelope_violations, 0);
  }
};

TEST_P(EncodingPairTest, TheLawHoldsForEveryTokenOfEverySet) {
  ForEachPosition([](const RandomPosition& position, const Encoded& encoded) {
    EveryDraw draws(position, encoded.used);
    const std::vector<float> envelopes(encoded.used, encoded.envelope.log_envelope);
    const std::vector<float> masses(encoded.used, 1.0f);
    draws.Evaluate(static_cast<int>(position.behavior.size()), {},
                   {.sampled_log_probs = draws.current_sampled,
                    .log_probs = {},
                    .log_envelopes = envelopes,
                    .covered_masses = masses});
    draws.ExpectLawFor(encoded.envelope.log_envelope);
  });
}

TEST_P(EncodingPairTest, TheLawHoldsOverDecodedRows) {
  RandomPositions positions(8);
  for (int i = 0; i < 300 && !HasFatalFailure(); ++i) {
    const size_t slots = 1 + positions.Below(128);
    const RandomPosition position = positions.Next(slots);
    const Encoded encoded = Encode(std::get<0>(GetParam()), std::get<1>(GetParam()), position);
    EveryDraw draws(position, encoded.used);
    std::vector<float> behavior;
    std::vector<float> current;
    for (size_t v = 0; v < encoded.used; ++v) {
      behavior.insert(behavior.end(), encoded.behavior.begin(), encoded.behavior.end());
      current.insert(current.end(), encoded.current.begin(), encoded.current.end());
    }
    if (encoded.used == 0) continue;
    draws.Evaluate(static_cast<int>(slots), behavior,
                   {.sampled_log_probs = draws.current_sampled,
                    .log_probs = current,
                    .log_envelopes = {},
                    .covered_masses = {}});
    draws.ExpectLawFor(encoded.envelope.log_envelope);
    EXPECT_EQ(draws.sums.log_envelope, encoded.used * Fixed(encoded.envelope.log_envelope));
  }
}

TEST_P(EncodingPairTest, EqualPoliciesAreAcceptedUpToTheSteps) {
  ForEachPosition([](RandomPosition position, const Encoded&) {
    if (position.used > 0 && position.behavior[position.used - 1] < kFixed12Floor) return;
    position.current = position.behavior;
    const Encoded encoded = Encode(std::get<0>(GetParam()), std::get<1>(GetParam()), position);
    const float log_acceptance = -encoded.envelope.log_envelope;
    ASSERT_TRUE(encoded.used == 0 ||
                log_acceptance >= -(encoded.behavior_step + encoded.current_step) * (1 + 0x1p-20f))
        << log_acceptance;
  });
}

// A record that was fetched can be stored again. (Current rows may come to another multiplier, as
// their lowest slot went up; nobody encodes them twice.)
TEST_P(EncodingPairTest, EncodingADecodedRecordChangesNothing) {
  ForEachPosition([](const RandomPosition&, const Encoded& encoded) {
    const RandomPosition decoded{encoded.behavior, encoded.current, encoded.used};
    const Encoded again = Encode(std::get<0>(GetParam()), std::get<1>(GetParam()), decoded);
    ASSERT_EQ(again.behavior, encoded.behavior);
    ASSERT_EQ(again.used, encoded.used);
  });
}

std::string NameOf(LogProbEncoding encoding) {
  return encoding == kFloat32 ? "Float32" : encoding == kFloat16 ? "Float16" : "Fixed12";
}

INSTANTIATE_TEST_SUITE_P(Pairs, EncodingPairTest,
                         testing::Combine(testing::Values(kFloat32, kFloat16, kFixed12),
                                          testing::Values(kFloat32, kFloat16, kFixed12)),
                         [](const testing::TestParamInfo<Pair>& pair) {
                           return NameOf(std::get<0>(pair.param)) + NameOf(std::get<1>(pair.param));
                         });

// Positions share groups, but nothing else: each decodes to what it decodes to alone.
TEST(LogProbs, NeighboursDoNotMatter) {
  constexpr int kSlots = 9;
  for (const LogProbEncoding encoding : {kFloat32, kFloat16, kFixed12}) {
    for (const size_t positions : {1, 15, 16, 17, 40}) {
      RandomPositions random(positions);
      std::vector<float> behavior;
      std::vector<float> current;
      std::vector<float> behavior_alone;
      std::vector<float> current_alone;
      for (size_t i = 0; i < positions; ++i) {
        const RandomPosition position = random.Next(kSlots);
        const Encoded alone = Encode(encoding, encoding, position);
        behavior.insert(behavior.end(), position.behavior.begin(), position.behavior.end());
        current.insert(current.end(), position.current.begin(), position.current.end());
        behavior_alone.insert(behavior_alone.end(), alone.behavior.begin(), alone.behavior.end());
        current_alone.insert(current_alone.end(), alone.current.begin(), alone.current.end());
      }
      std::vector<uint8_t> used(positions);
      std::vector<std::byte> bytes(LogProbBytes(encoding, positions, kSlots));
      std::vector<float> decoded(positions * kSlots);
      EncodeBehaviorLogProbs(encoding, behavior, kSlots, used, bytes);
      DecodeLogProbs(encoding, bytes, kSlots, decoded);
      EXPECT_EQ(decoded, behavior_alone);
      EncodeCurrentLogProbs(encoding, current, kSlots, used, bytes);
      DecodeLogProbs(encoding, bytes, kSlots, decoded);
      EXPECT_EQ(decoded, current_alone);
    }
  }
}

TEST(LogProbs, ALowSlotLeavesTheSet) {
  const std::vector<float> log_probs = {-0.25f, -63.0f, -65.0f, -65505.0f};
  const auto used_by = [&](LogProbEncoding encoding) {
    std::vector<std::byte> bytes(LogProbBytes(encoding, 1, 4));
    std::vector<uint8_t> used(1);
    EncodeBehaviorLogProbs(encoding, log_probs, 4, used, bytes);
    return used[0];
  };
  EXPECT_EQ(used_by(kFloat32), 4);
  EXPECT_EQ(used_by(kFloat16), 3);
  EXPECT_EQ(used_by(kFixed12), 2);
}

TEST(LogProbs, ThePackedSizes) {
  EXPECT_EQ(LogProbBytes(kFloat32, 16, 10), 16 * 10 * 4);
  EXPECT_EQ(LogProbBytes(kFloat16, 17, 10), 32 * 10 * 2);
  EXPECT_EQ(LogProbBytes(kFixed12, 16, 10), 16 * 11 * 3 / 2);
}

}  // namespace
}  // namespace sis
