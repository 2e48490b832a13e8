#include "kernels/decide/decide.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "gtest/gtest.h"

namespace sis {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr uint32_t kLargestUniform = ~0u;
// log_envelope and residual mass of a position without envelope or mass, as the sums count them.
constexpr int64_t kClampedEnvelope = -64 * (int64_t{1} << 30);
constexpr int64_t kOne = int64_t{1} << 30;

Envelope EnvelopeOf(std::span<const float> behavior, std::span<const float> current) {
  EnvelopeAccumulator accumulator;
  for (size_t slot = 0; slot < behavior.size(); ++slot) {
    accumulator.Add(behavior[slot], current[slot]);
  }
  return accumulator.Finish();
}

Sums SumsOf(const PositionResult& result, const Envelope& envelope) {
  Sums sums;
  AddPosition(result, envelope, sums);
  return sums;
}

TEST(FlushTest, ReplacesWhatIsBelowTwoToTheMinus100ByPlusZero) {
  for (const float x :
       {0x1p-101f, -0x1p-101f, std::nextafter(0x1p-100f, 0.0f), -0x1p-149f, -0.0f}) {
    EXPECT_EQ(std::bit_cast<uint32_t>(Flush(x)), 0u) << x;
  }
  for (const float x : {0x1p-100f, -0x1p-100f, 3.0f, -kInfinity}) EXPECT_EQ(Flush(x), x);
}

TEST(EnvelopeTest, IsTheLargestLogRatioAndTheSumInOrder) {
  const Envelope envelope =
      EnvelopeOf(std::vector{-0.5f, -1.5f, -3.0f}, std::vector{-1.0f, -1.25f, -3.5f});
  EXPECT_EQ(envelope.log_envelope, 0.25f);
  EXPECT_EQ(envelope.covered_mass, (Exp32(-1.0f) + Exp32(-1.25f)) + Exp32(-3.5f));
}

TEST(EnvelopeTest, CoveredMassIsAddedFromTheFirstSlotOn) {
  // Added from the other end, the two small ones would reach the next float after 1.
  constexpr float kSmall = -16.7f;  // e^-16.7 is just below 2^-24, half a place above 1
  const Envelope envelope =
      EnvelopeOf(std::vector{0.0f, -1.0f, -2.0f}, std::vector{0.0f, kSmall, kSmall});
  EXPECT_EQ(envelope.covered_mass, 1.0f);
}

TEST(EnvelopeTest, UnusedSlotsAreLeftOutWhateverTheCurrentPolicySays) {
  for (const float ignored : {kNan, kInfinity, 5.0f, -kInfinity}) {
    const Envelope envelope =
        EnvelopeOf(std::vector{-0.5f, -kInfinity}, std::vector{-0.75f, ignored});
    EXPECT_EQ(envelope.log_envelope, -0.25f) << ignored;
    EXPECT_EQ(envelope.covered_mass, Exp32(-0.75f)) << ignored;
  }
}

TEST(TotalVariationTest, IsHalfTheL1DistanceInOrderOverUsedSlots) {
  TotalVariationAccumulator accumulator;
  accumulator.Add(-0.5f, -1.0f);
  accumulator.Add(-1.5f, -1.25f);
  accumulator.Add(-3.0f, -kInfinity);
  accumulator.Add(-kInfinity, kNan);
  const float first = Exp32(-0.5f) - Exp32(-1.0f);
  const float second = Exp32(-1.25f) - Exp32(-1.5f);
  EXPECT_EQ(accumulator.Finish(), 0.5f * ((first + second) + Exp32(-3.0f)));
}

TEST(TotalVariationTest, IsAddedFromTheFirstSlotOn) {
  // Added from the other end, the small ones would reach the next float after 1.
  constexpr float kSmall = -16.7f;  // e^-16.7 is just below 2^-24, half a place above 1
  TotalVariationAccumulator accumulator;
  for (const float behavior : {0.0f, kSmall, kSmall}) accumulator.Add(behavior, -kInfinity);
  EXPECT_EQ(accumulator.Finish(), 0.5f);
}

TEST(TotalVariationTest, IsAtMost1) {
  TotalVariationAccumulator accumulator;
  accumulator.Add(0x1p-6f, -40.0f);
  accumulator.Add(-40.0f, 0x1p-6f);
  EXPECT_EQ(accumulator.Finish(), 1.0f);
}

// Section 10 of docs/numerics.md, row by row.

TEST(SpecialValuesTest, ACurrentLogProbOfMinusInfinityAddsNothing) {
  const Envelope envelope = EnvelopeOf(std::vector{-0.5f, -1.5f}, std::vector{-0.75f, -kInfinity});
  EXPECT_EQ(envelope.log_envelope, -0.25f);
  EXPECT_EQ(envelope.covered_mass, Exp32(-0.75f));
}

TEST(SpecialValuesTest, AllCurrentLogProbsMinusInfinity) {
  const Envelope envelope =
      EnvelopeOf(std::vector{-0.5f, -1.5f}, std::vector{-kInfinity, -kInfinity});
  EXPECT_EQ(envelope.log_envelope, -kInfinity);
  EXPECT_EQ(envelope.covered_mass, 0.0f);
  const Sums sums = SumsOf(Decide(-0.5f, -kInfinity, envelope, true, 0), envelope);
  EXPECT_EQ(sums.residual_mass, kOne);
  EXPECT_EQ(sums.log_envelope, kClampedEnvelope);
  EXPECT_EQ(sums.expected_acceptance, 0);
}

TEST(SpecialValuesTest, ACurrentSampledLogProbOfMinusInfinityIsNeverAccepted) {
  for (const Envelope envelope : {Envelope{0.5f, 0.9f}, Envelope{-kInfinity, 0.0f}}) {
    const PositionResult result = Decide(-0.5f, -kInfinity, envelope, true, 0);
    EXPECT_EQ(result.decision, Decision::kRejected);
    EXPECT_EQ(result.acceptance_probability, 0.0f);
    EXPECT_FALSE(result.envelope_violation);
    EXPECT_EQ(result.log_modified_ratio(), -kInfinity);
    EXPECT_EQ(result.modified_ratio(), 0.0f);
    EXPECT_EQ(SumsOf(result, envelope).d, 64 * kOne);
    EXPECT_EQ(SumsOf(result, envelope).d_sis, 64 * kOne);
  }
}

TEST(SpecialValuesTest, WithoutASlotNothingIsInTopK) {
  const Envelope envelope = EnvelopeOf(std::vector{-kInfinity}, std::vector{-0.5f});
  EXPECT_EQ(envelope.log_envelope, -kInfinity);
  const PositionResult result = Decide(-0.5f, -0.25f, envelope, false, 0);
  EXPECT_EQ(result.decision, Decision::kOutsideTopK);
  const Sums sums = SumsOf(result, envelope);
  EXPECT_EQ(sums.residual_mass, kOne);
  EXPECT_EQ(sums.log_envelope, kClampedEnvelope);
  EXPECT_EQ(sums.outside_top_k, 1);
}

TEST(SpecialValuesTest, ARatioThatIsTheEnvelopeIsAlwaysAccepted) {
  const PositionResult result = Decide(-1.5f, -1.25f, {0.25f, 0.9f}, true, kLargestUniform);
  EXPECT_EQ(result.decision, Decision::kAccepted);
  EXPECT_EQ(result.acceptance_probability, 1.0f);
  EXPECT_FALSE(result.envelope_violation);
}

TEST(SpecialValuesTest, MinusZeroIsZero) {
  const PositionResult result = Decide(-0.0f, 0.0f, {-0.0f, 1.0f}, true, kLargestUniform);
  EXPECT_EQ(result.decision, Decision::kAccepted);
  EXPECT_FALSE(result.envelope_violation);
  const PositionResult outside = Decide(0.0f, -0.0f, {0.0f, 1.0f}, false, 0);
  EXPECT_EQ(std::bit_cast<uint32_t>(outside.log_modified_ratio()), 0u);
}

TEST(SpecialValuesTest, EqualPoliciesAcceptEveryMember) {
  const std::vector<float> log_probs = {-0.5f, -1.5f, -3.0f, -0x1.91eb86p+2f};
  const Envelope envelope = EnvelopeOf(log_probs, log_probs);
  EXPECT_EQ(envelope.log_envelope, 0.0f);
  for (const float log_prob : log_probs) {
    const PositionResult result = Decide(log_prob, log_prob, envelope, true, kLargestUniform);
    EXPECT_EQ(result.decision, Decision::kAccepted);
    EXPECT_EQ(result.log_ratio, 0.0f);
  }
}

TEST(DecideTest, AcceptsIfTheUniformIsBelowTheThreshold) {
  const float a = Exp32(-0.75f);
  const auto threshold = static_cast<uint32_t>(static_cast<double>(a) * 0x1p32);
  const Envelope envelope{0.25f, 0.9f};
  EXPECT_EQ(Decide(-1.0f, -1.5f, envelope, true, threshold - 1).decision, Decision::kAccepted);
  EXPECT_EQ(Decide(-1.0f, -1.5f, envelope, true, threshold).decision, Decision::kRejected);
  EXPECT_EQ(Decide(-1.0f, -1.5f, envelope, true, 0).acceptance_probability, a);
}

TEST(DecideTest, AnImpossibleAcceptanceIsRejectedByEveryUniform) {
  const PositionResult result = Decide(-1.0f, -99.0f, {0.25f, 0.9f}, true, 0);
  EXPECT_EQ(result.acceptance_probability, 0.0f);
  EXPECT_EQ(result.decision, Decision::kRejected);
}

TEST(DecideTest, NeverAcceptsOutsideTopK) {
  const PositionResult result = Decide(-1.0f, -0.5f, {0.25f, 0.9f}, false, 0);
  EXPECT_EQ(result.decision, Decision::kOutsideTopK);
  EXPECT_EQ(result.acceptance_probability, 0.0f);
  EXPECT_FALSE(result.envelope_violation);
  EXPECT_EQ(result.log_modified_ratio(), 0.5f);
}

TEST(DecideTest, ARatioAboveTheEnvelopeIsAViolationAndAccepted) {
  for (const float log_envelope : {std::nextafter(0.5f, 0.0f), -kInfinity}) {
    const PositionResult result = Decide(-1.0f, -0.5f, {log_envelope, 0.9f}, true, kLargestUniform);
    EXPECT_TRUE(result.envelope_violation);
    EXPECT_EQ(result.acceptance_probability, 1.0f);
    EXPECT_EQ(result.decision, Decision::kAccepted);
    EXPECT_EQ(SumsOf(result, {log_envelope, 0.9f}).envelope_violations, 1);
  }
}

TEST(DecideTest, ModifiedRatioIsOneOrTheRatio) {
  const PositionResult accepted = Decide(-1.0f, -1.5f, {0.25f, 0.9f}, true, 0);
  EXPECT_EQ(accepted.modified_ratio(), 1.0f);
  EXPECT_EQ(accepted.log_modified_ratio(), 0.0f);
  const PositionResult rejected = Decide(-1.0f, -1.5f, {0.25f, 0.9f}, true, kLargestUniform);
  EXPECT_EQ(rejected.modified_ratio(), Exp32(-0.5f));
  EXPECT_EQ(rejected.log_modified_ratio(), -0.5f);
}

TEST(FixedTest, TruncatesTowardsZeroInUnitsOfTwoToTheMinus30) {
  EXPECT_EQ(Fixed(1.0f), kOne);
  EXPECT_EQ(Fixed(0x1p-30f), 1);
  EXPECT_EQ(Fixed(0x1.8p-30f), 1);
  EXPECT_EQ(Fixed(-0x1.8p-30f), -1);
  EXPECT_EQ(Fixed(0x1.fffffep-31f), 0);
}

TEST(FixedTest, IsLimitedTo64) {
  EXPECT_EQ(Fixed(64.0f), 64 * kOne);
  EXPECT_EQ(Fixed(65.0f), 64 * kOne);
  EXPECT_EQ(Fixed(kInfinity), 64 * kOne);
  EXPECT_EQ(Fixed(-kInfinity), -64 * kOne);
  EXPECT_EQ(FromFixed(Fixed(-65.0f)), -64.0);
}

TEST(AddPositionTest, AnAcceptedPositionAddsToDButNotToDSis) {
  const Envelope envelope{0.25f, 0.875f};
  const Sums sums = SumsOf(Decide(-1.0f, -1.5f, envelope, true, 0), envelope);
  Sums expected;
  expected.accepted = 1;
  expected.d = kOne / 2;
  expected.log_envelope = kOne / 4;
  expected.residual_mass = kOne / 8;
  expected.acceptance_probability = Fixed(Exp32(-0.75f));
  expected.expected_acceptance = Fixed(0.875f * Exp32(-0.25f));
  expected.k3 = Fixed((Exp32(-0.5f) - 1.0f) + 0.5f);
  EXPECT_TRUE(sums == expected);
}

TEST(AddPositionTest, ARejectedOrOutsidePositionAddsToBoth) {
  const Envelope envelope{0.25f, 0.875f};
  const Sums rejected = SumsOf(Decide(-1.0f, -1.5f, envelope, true, kLargestUniform), envelope);
  EXPECT_EQ(rejected.rejected, 1);
  EXPECT_EQ(rejected.d, kOne / 2);
  EXPECT_EQ(rejected.d_sis, kOne / 2);
  const Sums outside = SumsOf(Decide(-1.0f, -0.5f, envelope, false, 0), envelope);
  EXPECT_EQ(outside.outside_top_k, 1);
  EXPECT_EQ(outside.d, kOne / 2);
  EXPECT_EQ(outside.d_sis, kOne / 2);
  EXPECT_EQ(outside.acceptance_probability, 0);
}

TEST(AddPositionTest, ResidualMassAndExpectedAcceptanceStayInTheirRange) {
  // A mass above 1 by rounding, and an envelope below 1.
  const Envelope envelope{-0.5f, 1.0078125f};
  const Sums sums = SumsOf(Decide(-1.0f, -1.5f, envelope, true, 0), envelope);
  EXPECT_EQ(sums.residual_mass, 0);
  EXPECT_EQ(sums.expected_acceptance, kOne);
}

TEST(AddPositionTest, AnImpossibleTokenCountsAs64InK3) {
  const Envelope envelope{0.0f, 1.0f};
  EXPECT_EQ(SumsOf(Decide(-1.0f, -kInfinity, envelope, true, 0), envelope).k3, 64 * kOne);
}

TEST(AddPrefixTest, AddsWhatAnEvaluationOfThatKWouldAdd) {
  for (const Envelope envelope :
       {Envelope{0.25f, 0.875f}, Envelope{-0.5f, 1.0078125f}, Envelope{-kInfinity, 0.0f}}) {
    const Sums sums = SumsOf(Decide(-1.0f, -1.5f, envelope, true, 0), envelope);
    PrefixSums prefix{100, 200};
    AddPrefix(envelope, prefix);
    EXPECT_EQ(prefix.residual_mass, 100 + sums.residual_mass);
    EXPECT_EQ(prefix.expected_acceptance, 200 + sums.expected_acceptance);
  }
}

TEST(SumsTest, AddEveryMember) {
  Sums sums{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
  sums += Sums{100, 200, 300, 400, 500, 600, 700, 800, 900, 1000, 1100, 1200, 1300, 1400};
  EXPECT_TRUE(
      (sums == Sums{101, 202, 303, 404, 505, 606, 707, 808, 909, 1010, 1111, 1212, 1313, 1414}));
  EXPECT_EQ(sums.scored(), 606);
  PrefixSums prefix{1, 2};
  prefix += PrefixSums{10, 20};
  EXPECT_TRUE((prefix == PrefixSums{11, 22}));
}

}  // namespace
}  // namespace sis
