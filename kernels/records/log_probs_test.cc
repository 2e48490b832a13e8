// What one-sided rounding promises: never an envelope below the true one, and the exact law of
// accepted tokens.
#include "kernels/records/log_probs.h"

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/records/fixed12.h"
#include "kernels/testing/decoded_log_probs.h"
#include "kernels/testing/encoded_position.h"
#include "kernels/testing/random_positions.h"

namespace sis {
namespace {

using enum LogProbEncoding;

class EncodingTest : public testing::TestWithParam<LogProbEncoding> {
 protected:
  // Twelve thousand positions for each encoding.
  template <typename Function>
  void ForEachPosition(const Function& function) {
    RandomPositions positions(7);
    for (int i = 0; i < 12000 && !HasFatalFailure(); ++i) {
      const size_t slots =
          positions.Below(4) == 0 ? 1 + positions.Below(128) : 1 + positions.Below(20);
      const RandomPosition position = positions.Next(slots);
      function(position, Encode(GetParam(), position));
    }
  }
};

TEST_P(EncodingTest, MovesEverySlotToTheSafeSideByAtMostOneStep) {
  ForEachPosition([](const RandomPosition& position, const Encoded& encoded) {
    ASSERT_LE(encoded.used, position.used);
    for (size_t slot = 0; slot < position.used; ++slot) {
      const float behavior = position.behavior[slot];
      if (slot >= encoded.used) {
        ASSERT_LT(behavior, kFixed12Floor);
        ASSERT_EQ(encoded.behavior[slot], kMinusInfinity);
        continue;
      }
      ASSERT_LE(encoded.behavior[slot], behavior);
      ASSERT_LE(behavior - encoded.behavior[slot], encoded.behavior_step);
      ASSERT_TRUE(slot == 0 || encoded.behavior[slot] <= encoded.behavior[slot - 1]);
    }
    for (size_t slot = position.used; slot < position.behavior.size(); ++slot) {
      ASSERT_EQ(encoded.behavior[slot], kMinusInfinity);
      ASSERT_EQ(encoded.current[slot], kMinusInfinity);
    }
  });
}

TEST_P(EncodingTest, TheEnvelopeIsNeverBelowTheTrueOne) {
  ForEachPosition([](const RandomPosition& position, const Encoded& encoded) {
    EnvelopeAccumulator accumulator;
    for (size_t slot = 0; slot < encoded.used; ++slot) {
      accumulator.Add(position.behavior[slot], position.current[slot]);
    }
    ASSERT_GE(encoded.envelope.log_envelope, accumulator.Finish().log_envelope);
  });
}

TEST_P(EncodingTest, TheLawHoldsForEveryTokenOfEverySet) {
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

TEST_P(EncodingTest, EqualPoliciesAreAcceptedUpToTheSteps) {
  ForEachPosition([](RandomPosition position, const Encoded&) {
    if (position.used > 0 && position.behavior[position.used - 1] < kFixed12Floor) return;
    position.current = position.behavior;
    const Encoded encoded = Encode(GetParam(), position);
    const float log_acceptance = -encoded.envelope.log_envelope;
    ASSERT_TRUE(encoded.used == 0 || log_acceptance >= -encoded.behavior_step * (1 + 0x1p-20f))
        << log_acceptance;
  });
}

// A record that was fetched can be stored again.
TEST_P(EncodingTest, EncodingADecodedRecordChangesNothing) {
  ForEachPosition([](const RandomPosition&, const Encoded& encoded) {
    const RandomPosition decoded{encoded.behavior, encoded.current, encoded.used};
    const Encoded again = Encode(GetParam(), decoded);
    ASSERT_EQ(again.behavior, encoded.behavior);
    ASSERT_EQ(again.used, encoded.used);
  });
}

std::string NameOf(LogProbEncoding encoding) {
  return encoding == kFloat32 ? "Float32" : encoding == kFloat16 ? "Float16" : "Fixed12";
}

TEST_P(EncodingTest, RoundingIsEncodingAndDecoding) {
  ForEachPosition([](const RandomPosition& position, const Encoded& encoded) {
    const LogProbEncoding encoding = GetParam();
    const auto slots = static_cast<int>(position.behavior.size());
    std::vector<float> rounded(slots);
    uint16_t used;
    for (const auto& row : {position.behavior, encoded.behavior}) {
      RoundBehaviorRows(encoding, row, slots, rounded, {&used, 1});
      ASSERT_EQ(used, encoded.used);
      ASSERT_EQ(rounded, encoded.behavior);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, EncodingTest, testing::Values(kFloat32, kFloat16, kFixed12),
                         [](const auto& info) { return NameOf(info.param); });

// Positions share groups, but nothing else: each decodes to what it decodes to alone.
TEST(LogProbs, NeighboursDoNotMatter) {
  constexpr int kSlots = 9;
  for (const LogProbEncoding encoding : {kFloat32, kFloat16, kFixed12}) {
    for (const size_t positions : {1, 15, 16, 17, 40}) {
      RandomPositions random(positions);
      std::vector<float> behavior;
      std::vector<float> behavior_alone;
      for (size_t i = 0; i < positions; ++i) {
        const RandomPosition position = random.Next(kSlots);
        const Encoded alone = Encode(encoding, position);
        behavior.insert(behavior.end(), position.behavior.begin(), position.behavior.end());
        behavior_alone.insert(behavior_alone.end(), alone.behavior.begin(), alone.behavior.end());
      }
      std::vector<uint16_t> used(positions);
      std::vector<std::byte> bytes(LogProbBytes(encoding, positions, kSlots));
      std::vector<float> decoded(positions * kSlots);
      std::vector<float> rounded(positions * kSlots);
      EncodeBehaviorLogProbs(encoding, behavior, kSlots, used, bytes, rounded);
      DecodeLogProbs(encoding, bytes, kSlots, decoded);
      EXPECT_EQ(decoded, behavior_alone);
      EXPECT_EQ(rounded, behavior_alone);
    }
  }
}

TEST(LogProbs, ALowSlotLeavesTheSet) {
  const std::vector<float> log_probs = {-0.25f, -63.0f, -65.0f, -65505.0f};
  const auto used_by = [&](LogProbEncoding encoding) {
    std::vector<std::byte> bytes(LogProbBytes(encoding, 1, 4));
    std::vector<uint16_t> used(1);
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
