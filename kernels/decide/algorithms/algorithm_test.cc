#include "kernels/decide/algorithms/algorithm.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/decide/decide.h"
#include "kernels/numerics/sums.h"

namespace sis {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

const std::vector<Algorithm> kAll = {
    ImportanceSampling{}, NoCorrection{}, Grpo{},    Dapo{}, Gspo{},   Cispo{},
    DppoTopK{},           DppoBinary{},   ClipCov{}, Tis{},  IcePop{}, SoftAcceptance{},
    DampedTruncation{}};

// Three positions of one sequence, and the arrays that every algorithm may want.
struct Fixture {
  std::vector<SequenceStretch> parts = {{.sequence_key = 7, .first_position = 0, .count = 3}};
  std::vector<TokenState> states = std::vector(3, TokenState::kOffPolicy);
  std::vector<float> log_ratios = {0.0f, -1.0f, 1.0f};
  std::vector<float> current_log_probs = {-1.0f, -2.0f, -0.5f};
  std::vector<float> reference_log_probs = {-1.0f, -1.0f, -1.5f};
  std::vector<float> total_variations = {0.0f, 0.1f, 0.2f};
  std::vector<float> log_importance_ratios = {0.5f, -1.0f, 1.0f};
  std::vector<float> acceptance_probabilities = {0.25f, 0.5f, 0.75f};
  std::vector<float> advantages = {1.0f, -1.0f, 0.5f};
  std::vector<float> surrogates = std::vector<float>(3);
  std::vector<float> coefficients = std::vector<float>(3);

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
  AlgorithmOutput output() { return {.surrogates = surrogates, .coefficients = coefficients}; }
};

std::string Refusal(const Algorithm& algorithm, const AlgorithmInput& batch,
                    const AlgorithmOutput& output) {
  const absl::Status status = ValidateAlgorithm(algorithm, batch, output);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << AlgorithmName(algorithm);
  return std::string(status.message());
}

std::string Refusal(const Algorithm& algorithm) {
  Fixture fixture;
  return Refusal(algorithm, fixture.batch(), fixture.output());
}

TEST(ValidateAlgorithmTest, TheDefaultsAreValid) {
  Fixture fixture;
  for (const Algorithm& algorithm : kAll) {
    EXPECT_TRUE(ValidateAlgorithm(algorithm, fixture.batch(), fixture.output()).ok())
        << AlgorithmName(algorithm);
  }
}

TEST(ValidateAlgorithmTest, AParameterOutOfRangeIsNamedWithItsValue) {
  EXPECT_EQ(Refusal(Grpo{.epsilon = 1.5f}), "grpo.epsilon: 1.5, must be in [0, 1]");
  EXPECT_THAT(Refusal(Grpo{.epsilon = kNan}), HasSubstr("grpo.epsilon: nan"));
  EXPECT_THAT(Refusal(Dapo{.epsilon_low = -0.5f}), HasSubstr("dapo.epsilon_low: -0.5"));
  EXPECT_THAT(Refusal(Dapo{.epsilon_high = kInfinity}), HasSubstr("dapo.epsilon_high: inf"));
  EXPECT_THAT(Refusal(Gspo{.epsilon_low = 2.0f}), HasSubstr("gspo.epsilon_low: 2"));
  EXPECT_THAT(Refusal(Gspo{.epsilon_high = -1.0f}), HasSubstr("gspo.epsilon_high: -1"));
  EXPECT_THAT(Refusal(Cispo{.epsilon_high = -1.0f}), HasSubstr("cispo.epsilon_high: -1"));
  EXPECT_THAT(Refusal(DppoTopK{.threshold = 2.0f}), HasSubstr("dppo_top_k.threshold: 2"));
  EXPECT_THAT(Refusal(DppoBinary{.threshold = kNan}), HasSubstr("dppo_binary.threshold: nan"));
  EXPECT_THAT(Refusal(ClipCov{.lower = kNan}), HasSubstr("clip_cov.lower: nan"));
  EXPECT_THAT(Refusal(ClipCov{.lower = 2.0f, .upper = 1.0f}), HasSubstr("clip_cov.upper: 1"));
  EXPECT_THAT(Refusal(ClipCov{.fraction = 2.0f}), HasSubstr("clip_cov.fraction: 2"));
  EXPECT_THAT(Refusal(Tis{.truncation = 0.5f}), HasSubstr("tis.truncation: 0.5"));
  EXPECT_THAT(Refusal(Tis{.epsilon_low = 1.5f}), HasSubstr("tis.epsilon_low: 1.5"));
  EXPECT_THAT(Refusal(IcePop{.alpha = 1.5f}), HasSubstr("ice_pop.alpha: 1.5"));
  EXPECT_THAT(Refusal(IcePop{.beta = 0.5f}), HasSubstr("ice_pop.beta: 0.5"));
  EXPECT_THAT(Refusal(IcePop{.epsilon_high = -0.5f}), HasSubstr("ice_pop.epsilon_high: -0.5"));
}

TEST(ValidateAlgorithmTest, WhatAnAlgorithmNeedsIsNamed) {
  Fixture fixture;
  AlgorithmInput batch = fixture.batch();
  batch.total_variations = {};
  EXPECT_THAT(Refusal(DppoTopK{}, batch, fixture.output()), HasSubstr("total_variations: unset"));
  batch = fixture.batch();
  batch.reference_log_probs = {};
  EXPECT_THAT(Refusal(DppoBinary{}, batch, {}), HasSubstr("reference_log_probs: unset"));
  batch = fixture.batch();
  batch.current_log_probs = {};
  EXPECT_THAT(Refusal(DppoBinary{}, batch, {}), HasSubstr("current_log_probs: unset"));
  EXPECT_THAT(Refusal(ClipCov{}, batch, {}), HasSubstr("current_log_probs: unset"));
  batch = fixture.batch();
  batch.advantages = {};
  EXPECT_THAT(Refusal(ClipCov{}, batch, {}), HasSubstr("advantages: unset, but clip_cov"));
  EXPECT_THAT(Refusal(SoftAcceptance{}, batch, {.surrogates = fixture.surrogates}),
              HasSubstr("advantages: unset, but soft_acceptance"));
  EXPECT_THAT(Refusal(DampedTruncation{}, batch, {.surrogates = fixture.surrogates}),
              HasSubstr("advantages: unset, but damped_truncation"));
  EXPECT_THAT(Refusal(Grpo{}, batch, fixture.output()), HasSubstr("advantages: unset, but grpo"));
  EXPECT_TRUE(ValidateAlgorithm(Grpo{}, batch, {.surrogates = fixture.surrogates}).ok());
  batch = fixture.batch();
  batch.acceptance_probabilities = {};
  EXPECT_THAT(Refusal(SoftAcceptance{}, batch, {}), HasSubstr("acceptance_probabilities: unset"));
  batch = fixture.batch();
  batch.log_importance_ratios = {};
  EXPECT_THAT(Refusal(SoftAcceptance{}, batch, {}), HasSubstr("log_importance_ratios: unset"));
  std::vector<LogRatioSum> sums(1);
  EXPECT_THAT(Refusal(Grpo{}, fixture.batch(), {.log_ratio_sums = sums}), HasSubstr("only gspo"));
}

TEST(ValidateAlgorithmTest, AnAdvantageMustBeFinite) {
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    Fixture fixture;
    fixture.advantages[1] = bad;
    EXPECT_THAT(Refusal(Grpo{}, fixture.batch(), fixture.output()),
                HasSubstr("advantages: element 1"));
    fixture.states[1] = TokenState::kMasked;
    EXPECT_TRUE(ValidateAlgorithm(Grpo{}, fixture.batch(), fixture.output()).ok());
  }
  Fixture fixture;
  fixture.advantages[2] = 65.0f;
  EXPECT_TRUE(ValidateAlgorithm(Grpo{}, fixture.batch(), fixture.output()).ok());
  EXPECT_EQ(Refusal(ClipCov{}, fixture.batch(), fixture.output()),
            "advantages: element 2: 65, must be in [-64, 64]");
}

TEST(ValidateAlgorithmTest, LengthsMustAgree) {
  Fixture fixture;
  fixture.advantages.pop_back();
  EXPECT_EQ(Refusal(Grpo{}, fixture.batch(), fixture.output()),
            "advantages: 2 elements, must be 3");
  fixture = {};
  fixture.surrogates.push_back(0);
  EXPECT_EQ(Refusal(Grpo{}, fixture.batch(), fixture.output()),
            "surrogates: 4 elements, must be 3");
}

TEST(ApplyAlgorithmTest, AnEmptyBatchIsNothing) {
  for (const Algorithm& algorithm : kAll) {
    EXPECT_TRUE(ValidateAlgorithm(algorithm, {}, {}).ok()) << AlgorithmName(algorithm);
    ApplyAlgorithm(algorithm, {}, {});
  }
}

TEST(RatioClipTest, ARatioOnABoundStillCounts) {
  const RatioClip clip{.low = 0.25f, .high = 0.5f};
  const float above = std::nextafter(1.5f, 2.0f);
  const float below = std::nextafter(0.75f, 0.0f);
  EXPECT_EQ(clip.Coefficient(1.5f, 1.0f), 1.5f);
  EXPECT_EQ(clip.Coefficient(above, 1.0f), 0.0f);
  EXPECT_EQ(clip.Coefficient(above, -1.0f), above);
  EXPECT_EQ(clip.Coefficient(above, 0.0f), above);
  EXPECT_EQ(clip.Coefficient(0.75f, -1.0f), 0.75f);
  EXPECT_EQ(clip.Coefficient(below, -1.0f), 0.0f);
  EXPECT_EQ(clip.Coefficient(below, 1.0f), below);
  EXPECT_EQ(clip.Surrogate(above), 1.5f);
  EXPECT_EQ(clip.Surrogate(below), 0.75f);
}

TEST(RatioProductTest, IsLimitedAsRatiosAre) {
  const float largest = Exp32(88.0f);
  EXPECT_EQ(RatioProduct(largest, largest), largest);
  EXPECT_EQ(RatioProduct(largest, 1.0f), largest);
  EXPECT_EQ(RatioProduct(largest, 0.5f), largest * 0.5f);
}

TEST(SoftAcceptanceTest, OnlyATokenThatLeadsAwayIsWeighedWithItsAcceptance) {
  const float above = std::nextafter(1.0f, 2.0f);
  const float below = std::nextafter(1.0f, 0.0f);
  EXPECT_EQ((AcceptanceToken{above, 0.25f, 1.0f}.Factor()), 0.25f);
  EXPECT_EQ((AcceptanceToken{below, 0.25f, -1.0f}.Factor()), 0.25f);
  EXPECT_EQ((AcceptanceToken{above, 0.25f, -1.0f}.Factor()), 1.0f);
  EXPECT_EQ((AcceptanceToken{below, 0.25f, 1.0f}.Factor()), 1.0f);
  for (const float advantage : {-1.0f, 0.0f, 1.0f}) {
    EXPECT_EQ((AcceptanceToken{1.0f, 0.25f, advantage}.Factor()), 1.0f);
  }
  for (const float ratio : {above, below, 0.0f}) {
    EXPECT_EQ((AcceptanceToken{ratio, 0.25f, 0.0f}.Factor()), 1.0f);
  }
}

TEST(SoftAcceptanceTest, AnAcceptedTokenIsNotExempt) {
  Fixture fixture;
  fixture.states[0] = TokenState::kOnPolicy;  // its unmodified ratio is above 1, like its advantage
  ApplyAlgorithm(SoftAcceptance{}, fixture.batch(), fixture.output());
  EXPECT_THAT(fixture.coefficients, ElementsAre(0.25f, 0.5f * Exp32(-1.0f), 0.75f * Exp32(1.0f)));
  EXPECT_EQ(fixture.surrogates, fixture.coefficients);
}

TEST(SoftAcceptanceTest, WithThreePoliciesTheWholeRatioSaysWhichTokensLeadAway) {
  Fixture fixture;
  const std::vector<float> corrections = {0.0f, -0.5f, 0.5f};
  AlgorithmInput batch = fixture.batch();
  batch.log_corrections = corrections;
  fixture.log_importance_ratios = {-0.5f, 0.5f, 1.5f};
  ApplyAlgorithm(SoftAcceptance{}, batch, fixture.output());
  EXPECT_THAT(fixture.coefficients,
              ElementsAre(1.0f, Exp32(-0.5f) * Exp32(-1.0f), 0.75f * (Exp32(0.5f) * Exp32(1.0f))));
}

TEST(DampedTruncationTest, WeighsTheWholeRatioWhateverWasDecidedAndHoweverManyPolicies) {
  Fixture fixture;
  fixture.log_importance_ratios = {0.5f, -1.0f, -0.5f};
  const auto expected =
      ElementsAre(0.25f, 0.5f * Exp32(-1.0f), Exp32(-0.5f));  // outward, outward, neither
  ApplyAlgorithm(DampedTruncation{}, fixture.batch(), fixture.output());
  EXPECT_THAT(fixture.coefficients, expected);
  EXPECT_EQ(fixture.surrogates, fixture.coefficients);
  fixture.states = {TokenState::kOnPolicy, TokenState::kOnPolicy, TokenState::kOffPolicy};
  const std::vector<float> corrections = {0.0f, 0.0f, -0.5f};
  AlgorithmInput batch = fixture.batch();
  batch.log_corrections = corrections;
  ApplyAlgorithm(DampedTruncation{}, batch, fixture.output());
  EXPECT_THAT(fixture.coefficients, expected);
}

TEST(GspoTest, PartsThatAreAddedUpGiveWhatTheWholeSequenceGives) {
  Fixture whole;
  whole.states[1] = TokenState::kMasked;
  const Gspo gspo{.epsilon_low = 0.5f, .epsilon_high = 0.25f};
  std::vector<LogRatioSum> sums(1);
  AlgorithmOutput output = whole.output();
  output.log_ratio_sums = sums;
  ApplyAlgorithm(gspo, whole.batch(), output);
  EXPECT_EQ(sums[0], (LogRatioSum{int64_t{1} << 30, 2}));
  EXPECT_THAT(whole.surrogates, ElementsAre(1.25f, 0.0f, 1.25f));
  EXPECT_THAT(whole.coefficients, ElementsAre(0.0f, 0.0f, 0.0f));

  // The same positions on two machines.
  LogRatioSum reduced;
  std::array<Fixture, 2> halves;
  for (size_t i = 0; i < 2; ++i) {
    const size_t first = i == 0 ? 0 : 1;
    const size_t count = i == 0 ? 1 : 2;
    const AlgorithmInput batch = whole.batch();
    const std::array part = {
        SequenceStretch{7, static_cast<uint32_t>(first), static_cast<uint32_t>(count)}};
    LogRatioSum sum;
    ApplyAlgorithm(gspo,
                   {.parts = part,
                    .states = batch.states.subspan(first, count),
                    .log_ratios = batch.log_ratios.subspan(first, count)},
                   {.log_ratio_sums = {&sum, 1}});
    reduced += sum;
  }
  EXPECT_EQ(reduced, sums[0]);

  Fixture part;
  part.parts[0].whole_sequence = reduced;
  part.log_ratios = {0.0f, 0.0f, 0.0f};
  ApplyAlgorithm(gspo, part.batch(), part.output());
  EXPECT_THAT(part.surrogates, ElementsAre(1.25f, 1.25f, 1.25f));
}

TEST(GspoTest, AnImpossibleTokenIsLimitedAsTheSumsAre) {
  EXPECT_EQ(SequenceRatio({Fixed(kMinusInfinity), 64}), Exp32(-1.0f));
  EXPECT_EQ(SequenceRatio({0, 0}), 1.0f);
}

TEST(ClipCovTest, DropsAtLeastOneAndAtMostTheFraction) {
  constexpr size_t kCount = 1000;
  std::vector<SequenceStretch> parts = {{.sequence_key = 9, .first_position = 3, .count = kCount}};
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
