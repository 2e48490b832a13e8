#include "kernels/decide/algorithms/algorithm.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/decide/decide.h"
#include "kernels/numerics/sums.h"

namespace sis {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Three positions of one sequence, with all arrays that algorithms read.
struct Fixture {
  std::vector<SequenceRange> parts = {{.sequence_key = 7, .first_position = 0, .count = 3}};
  std::vector<TokenState> states = std::vector(3, TokenState::kOffPolicy);
  std::vector<float> log_ratios = {0.0f, -1.0f, 1.0f};
  std::vector<float> current_log_probs = {-1.0f, -2.0f, -0.5f};
  std::vector<float> reference_log_probs = {-1.0f, -1.0f, -1.5f};
  std::vector<float> total_variations = {0.0f, 0.1f, 0.2f};
  std::vector<float> log_importance_ratios = {0.5f, -1.0f, 1.0f};
  std::vector<float> acceptance_probabilities = {0.25f, 0.5f, 0.75f};
  std::vector<float> advantages = {1.0f, -1.0f, 0.5f};

  AlgorithmInput batch() const {
    return {.parts = parts,
            .states = states,
            .log_ratios = log_ratios,
            .current_log_probs = current_log_probs,
            .reference_log_probs = reference_log_probs,
            .total_variations = total_variations,
            .log_importance_ratios = log_importance_ratios,
            .acceptance_probabilities = acceptance_probabilities,
            .advantages = advantages};
  }
};

std::string Message(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(CheckParametersTest, EachIsNamedWithItsValueWhereItIsOutOfRange) {
  for (Algorithm& algorithm : AllAlgorithms()) {
    const std::string name(AlgorithmName(algorithm));
    EXPECT_TRUE(CheckParameters(algorithm).ok()) << name;
    for (const Parameter& parameter : ParametersOf(algorithm)) {
      const float before = *parameter.value;
      for (const float bad : {kNan, std::nextafter(parameter.low, -kInfinity),
                              std::nextafter(parameter.high, kInfinity)}) {
        *parameter.value = bad;
        EXPECT_THAT(Message(CheckParameters(algorithm)),
                    StartsWith(absl::StrCat(name, ".", std::string(parameter.name), ": ", bad)));
      }
      *parameter.value = before;
    }
  }
  EXPECT_EQ(Message(CheckParameters(Grpo{.epsilon = 1.5f})),
            "grpo.epsilon: 1.5, must be in [0, 1]");
  EXPECT_EQ(Message(CheckParameters(ClipCov{.lower = 2.0f, .upper = 1.0f})),
            "clip_cov.upper: 1, must be in [2, 1e+38]");
}

TEST(CheckAdvantagesTest, AlgorithmsThatReadAdvantagesNeedThem) {
  const Fixture fixture;
  AlgorithmInput batch = fixture.batch();
  batch.advantages = {};
  for (const Algorithm& algorithm : AllAlgorithms()) {
    EXPECT_TRUE(CheckAdvantages(algorithm, fixture.batch()).ok()) << AlgorithmName(algorithm);
    const absl::Status without = CheckAdvantages(algorithm, batch);
    const bool looks = std::holds_alternative<ClipCov>(algorithm) || WeighsByAcceptance(algorithm);
    EXPECT_EQ(without.ok(), !looks) << AlgorithmName(algorithm);
  }
  EXPECT_EQ(Message(CheckAdvantages(ClipCov{}, batch)),
            "advantages: unset, but clip_cov needs them");
}

TEST(CheckAdvantagesTest, OneThatCountsMustBeFinite) {
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    Fixture fixture;
    fixture.advantages[1] = bad;
    EXPECT_THAT(Message(CheckAdvantages(Grpo{}, fixture.batch())),
                HasSubstr("advantages: element 1"));
    fixture.states[1] = TokenState::kMasked;
    EXPECT_TRUE(CheckAdvantages(Grpo{}, fixture.batch()).ok());
  }
  Fixture fixture;
  fixture.advantages[2] = 65.0f;
  EXPECT_TRUE(CheckAdvantages(Grpo{}, fixture.batch()).ok());
  EXPECT_EQ(Message(CheckAdvantages(ClipCov{}, fixture.batch())),
            "advantages: element 2: 65, must be in [-64, 64]");
}

TEST(ApplyAlgorithmTest, AnEmptyBatchGivesEmptyResults) {
  for (const Algorithm& algorithm : AllAlgorithms()) ApplyAlgorithm(algorithm, {}, {});
}

TEST(RatioProductTest, IsLimitedAsRatiosAre) {
  const float largest = Exp32(88.0f);
  EXPECT_EQ(RatioProduct(largest, largest), largest);
  EXPECT_EQ(RatioProduct(largest, 1.0f), largest);
  EXPECT_EQ(RatioProduct(largest, 0.5f), largest * 0.5f);
}

TEST(GspoTest, AnImpossibleTokenIsLimitedAsTheSumsAre) {
  EXPECT_EQ(SequenceRatio({Fixed(kMinusInfinity), 64}), Exp32(-1.0f));
  EXPECT_EQ(SequenceRatio({0, 0}), 1.0f);
}

TEST(ClipCovTest, DropsAtLeastOneAndAtMostTheFraction) {
  constexpr size_t kCount = 1000;
  std::vector<SequenceRange> parts = {{.sequence_key = 9, .first_position = 3, .count = kCount}};
  std::vector<TokenState> states(kCount, TokenState::kOffPolicy);
  std::vector<float> log_ratios(kCount, 0.5f);
  std::vector<float> log_probs(kCount);
  std::vector<float> advantages(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    log_probs[i] = i % 2 == 0 ? -1.0f : -3.0f;  // every covariance is 1
    advantages[i] = i % 2 == 0 ? 1.0f : -1.0f;
  }
  const AlgorithmInput batch{.parts = parts,
                             .states = states,
                             .log_ratios = log_ratios,
                             .current_log_probs = log_probs,
                             .advantages = advantages};
  const auto dropped = [&](const ClipCov& clip_cov) {
    std::vector<float> surrogates(kCount);
    ApplyAlgorithm(clip_cov, batch, {.surrogates = surrogates});
    return std::ranges::count(surrogates, 0.0f);
  };
  EXPECT_EQ(dropped({.lower = 0.5f, .fraction = 0.0f}), 1);
  EXPECT_EQ(dropped({.lower = 0.5f, .fraction = 0.0625f}), 62);
  EXPECT_EQ(dropped({.lower = 0.5f, .fraction = 1.0f}), 1000);
  // Both bounds are exclusive.
  EXPECT_EQ(dropped({.lower = 1.0f, .fraction = 1.0f}), 0);
  EXPECT_EQ(dropped({.lower = 0.5f, .upper = 1.0f, .fraction = 1.0f}), 0);
}

}  // namespace
}  // namespace sis
