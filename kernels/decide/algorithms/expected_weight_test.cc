#include "kernels/decide/algorithms/expected_weight.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>

#include "gtest/gtest.h"
#include "kernels/numerics/sums.h"

namespace sis {
namespace {

struct Position {
  float behavior;
  float current;
  Envelope envelope;
};

Position RandomPosition(std::mt19937_64& random) {
  std::exponential_distribution<float> log_prob(0.3f);
  std::uniform_real_distribution<float> excess(-0.5f, 4.0f);
  Position position{-log_prob(random), -log_prob(random), {}};
  const float log_ratio = position.current - position.behavior;
  position.envelope = {std::max(log_ratio + excess(random), -0.1f), 0.9f};
  return position;
}

// The mean over all 2^32 uniforms. Decide accepts exactly the uniforms below a threshold, so
// testing two of them suffices.
TEST(ExpectedWeightTest, IsTheMeanOfTheSampledRatioOverAllUniforms) {
  std::mt19937_64 random(1);
  int interior = 0;
  for (int i = 0; i < 100'000; ++i) {
    const auto [behavior, current, envelope] = RandomPosition(random);
    const bool in_top_k = i % 10 != 0;
    const PositionResult any = Decide(behavior, current, envelope, in_top_k, 0);
    const auto threshold = static_cast<uint64_t>(any.acceptance_probability * 0x1p32f);
    double accepted_ratio = 1;
    double rejected_ratio = 0;
    if (threshold > 0) {
      const auto last = static_cast<uint32_t>(threshold - 1);
      const PositionResult accepted = Decide(behavior, current, envelope, in_top_k, last);
      ASSERT_EQ(accepted.decision, Decision::kAccepted);
      accepted_ratio = accepted.modified_ratio();
    }
    if (threshold <= UINT32_MAX) {
      const auto first = static_cast<uint32_t>(threshold);
      const PositionResult rejected = Decide(behavior, current, envelope, in_top_k, first);
      ASSERT_NE(rejected.decision, Decision::kAccepted);
      rejected_ratio = rejected.modified_ratio();
    }
    const double share = static_cast<double>(threshold) * 0x1p-32;
    const double mean = share * accepted_ratio + (1 - share) * rejected_ratio;
    const double expected = ExpectedRatio(any.acceptance_probability, any.log_ratio);
    // Allows three roundings of terms of at most the sum, and the threshold's truncation.
    const double ratio = std::exp(static_cast<double>(any.log_ratio));
    const double bound = 0x1p-24 * (3 * mean + 1 + 2 * ratio) + 0x1p-32 * std::abs(1 - ratio);
    ASSERT_TRUE(std::abs(expected - mean) <= bound) << expected << " " << mean;
    interior += threshold > 0 && threshold <= UINT32_MAX;

    const double logarithm = LogExpectedRatio(any.acceptance_probability, any.log_ratio);
    const double rounding = 0x1p-24 * std::abs(std::log(mean));
    ASSERT_TRUE(std::abs(logarithm - std::log(mean)) <= 2 * bound / mean + rounding) << mean;
  }
  EXPECT_GT(interior, 50'000);
}

TEST(ExpectedWeightTest, DSisIsAtMostD) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 100'000; ++i) {
    const auto [behavior, current, envelope] = RandomPosition(random);
    // Every second acceptance is so improbable that the sum is w, as rounded by the exponential.
    const Envelope wide = {envelope.log_envelope + (i % 2 == 0 ? 0.0f : 30.0f), 0.9f};
    const PositionResult result = Decide(behavior, current, wide, true, 0);
    const float expected = LogExpectedRatio(result.acceptance_probability, result.log_ratio);
    ASSERT_LE(Fixed(std::abs(expected)), Fixed(std::abs(result.log_ratio)));
    ASSERT_GE(expected * result.log_ratio, 0.0f);
  }
}

TEST(ExpectedWeightTest, ACertainDecisionLeavesNothingToAverage) {
  EXPECT_EQ(LogExpectedRatio(1.0f, 3.0f), 0.0f);
  EXPECT_EQ(LogExpectedRatio(0.0f, 3.0f), 3.0f);
  EXPECT_EQ(LogExpectedRatio(0.0f, kMinusInfinity), kMinusInfinity);
  EXPECT_EQ(ExpectedRatio(1.0f, -5.0f), 1.0f);
  EXPECT_EQ(ExpectedRatio(0.0f, -5.0f), Exp32(-5.0f));
}

}  // namespace
}  // namespace sis
