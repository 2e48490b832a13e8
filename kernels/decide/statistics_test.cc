#include "kernels/decide/statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "hwy/targets.h"
#include "kernels/numerics/log64.h"

namespace sis {
namespace {

struct Positions {
  std::vector<Decision> decisions;
  std::vector<float> log_ratios;
  std::vector<float> log_envelopes;
  std::vector<float> covered_masses;
  std::vector<float> acceptance_probabilities;
  std::vector<float> advantages;

  void Push(Decision decision, float log_ratio, float log_envelope, float covered_mass, float a,
            float advantage) {
    decisions.push_back(decision);
    log_ratios.push_back(log_ratio);
    log_envelopes.push_back(log_envelope);
    covered_masses.push_back(covered_mass);
    acceptance_probabilities.push_back(a);
    advantages.push_back(advantage);
  }
  size_t size() const { return decisions.size(); }
  DecidedPositions View(size_t first, size_t count) const {
    const auto part = [&](const auto& array) { return std::span(array).subspan(first, count); };
    return {.decisions = part(decisions),
            .log_ratios = part(log_ratios),
            .log_envelopes = part(log_envelopes),
            .covered_masses = part(covered_masses),
            .acceptance_probabilities = part(acceptance_probabilities),
            .advantages = part(advantages)};
  }
  DecidedPositions View() const { return View(0, size()); }
};

// Returns positions with ratios of every size, values at bounds and one unit in the last place next
// to them, all special values of valid positions, and positions with arbitrary values that don't
// count.
Positions RandomPositions(size_t count, uint32_t seed) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> unit(0.0f, 1.0f);
  const float special[] = {0.0f,     -kInfinity, -100.0f, -87.5f, 88.0f, 100.0f,
                           0x1p-10f, 1.0f,       0.5f,    16.0f,  2.0f,  -0.25f};
  Positions positions;
  for (size_t i = 0; i < count; ++i) {
    if (random() % 9 == 0) {
      positions.Push(random() % 2 == 0 ? Decision::kMissing : Decision::kMasked, NAN, NAN, NAN, NAN,
                     1.0f);
      continue;
    }
    const auto decision = static_cast<Decision>(1 + random() % 3);
    // Ratios of all sizes, from noise to unrelated engines.
    float log_ratio = normal(random) * std::ldexp(1.0f, static_cast<int>(random() % 16) - 12);
    if (random() % 8 == 0) log_ratio = special[random() % std::size(special)];
    if (random() % 8 == 0)
      log_ratio = std::nextafter(log_ratio, random() % 2 == 0 ? -99.0f : 99.0f);
    if (random() % 16 == 0) {
      log_ratio = static_cast<float>(Log64(kRatioBounds[random() % kRatioBounds.size()]));
    }
    float log_envelope =
        std::abs(normal(random)) * std::ldexp(1.0f, -static_cast<int>(random() % 14));
    if (random() % 16 == 0) log_envelope = random() % 2 == 0 ? -kInfinity : 0x1p-3f;
    if (random() % 16 == 0) log_envelope = -log_envelope;
    float covered = 1.0f - std::ldexp(unit(random), -static_cast<int>(random() % 20));
    if (random() % 16 == 0) covered = random() % 2 == 0 ? 1.0078125f : 0.0f;
    float a = decision == Decision::kOutsideTopK ? 0.0f : unit(random);
    if (random() % 8 == 0) a = static_cast<float>(random() % 17) / 16;
    const float advantage = random() % 8 == 0 ? 1e6f * normal(random) : normal(random);
    positions.Push(decision, log_ratio, Flush(log_envelope), covered, a, advantage);
  }
  return positions;
}

// Returns the first bucket whose bound is at least x. The first bound is 2^first_exponent, and each
// is twice the previous one.
size_t PowerBucket(float x, int first_exponent) {
  size_t bucket = 0;
  float bound = std::ldexp(1.0f, first_exponent);
  for (; bucket < kPowerBounds && !(x <= bound); ++bucket) bound *= 2.0f;
  return bucket;
}

size_t AcceptanceBucket(float a) { return static_cast<size_t>(std::ceil(a * 16.0f)); }

// Returns the statistics by their definition, position by position.
Statistics OneByOne(const DecidedPositions& positions) {
  Statistics statistics;
  for (size_t i = 0; i < positions.decisions.size(); ++i) {
    if (!positions.scored(i)) continue;
    const float log_ratio = positions.log_ratios[i];
    const float log_envelope = positions.log_envelopes[i];
    const float residual = ResidualMass({log_envelope, positions.covered_masses[i]});
    const float ratio = Exp32(log_ratio);
    ++statistics.abs_log_ratio[PowerBucket(std::abs(log_ratio), kFirstNatsExponent)];
    ++statistics.log_envelope[PowerBucket(log_envelope, kFirstNatsExponent)];
    ++statistics.residual_mass[PowerBucket(residual, kFirstMassExponent)];
    ++statistics.acceptance_probability[AcceptanceBucket(positions.acceptance_probabilities[i])];
    for (size_t bound = 0; bound < kRatioBounds.size(); ++bound) {
      const auto limit = static_cast<float>(kRatioBounds[bound]);
      statistics.ratios_beyond[bound] += limit < 1.0f ? ratio < limit : ratio > limit;
    }
    statistics.negative_log_envelope += Fixed(std::max(-log_envelope, 0.0f));
    const float advantage = positions.advantage(i);
    statistics.plain.Add(ratio, ratio, log_ratio, advantage);
    const float clipped = std::clamp(ratio, kClipLow, kClipHigh);
    statistics.clipped.Add(ratio, clipped, clipped == ratio ? log_ratio : LogOfWeight(clipped),
                           advantage);
    const bool accepted = positions.decisions[i] == Decision::kAccepted;
    statistics.applied.Add(ratio, accepted ? 1.0f : ratio, accepted ? 0.0f : log_ratio, advantage);
  }
  return statistics;
}

// Returns the sums that a backend would return.
Sums SumsAt(const DecidedPositions& positions) {
  Sums sums;
  for (size_t i = 0; i < positions.decisions.size(); ++i) {
    if (!positions.scored(i)) continue;
    AddPosition({positions.decisions[i], false, positions.acceptance_probabilities[i],
                 positions.log_ratios[i]},
                {positions.log_envelopes[i], positions.covered_masses[i]}, sums);
  }
  return sums;
}

Statistics OnVectors(const DecidedPositions& positions) {
  Statistics statistics;
  AddStatistics(positions, statistics);
  return statistics;
}

class OnEveryTarget : public testing::TestWithParam<int64_t> {
 protected:
  OnEveryTarget() {
    hwy::SetSupportedTargetsForTest(GetParam());
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  ~OnEveryTarget() override {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

INSTANTIATE_TEST_SUITE_P(Statistics, OnEveryTarget,
                         testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& info) { return hwy::TargetName(info.param); });

TEST_P(OnEveryTarget, AgreesWithTheDefinition) {
  for (const size_t count : {0, 1, 3, 15, 16, 17, 63, 64, 65, 1000, 1024, 1025, 5000}) {
    const Positions positions = RandomPositions(count, static_cast<uint32_t>(count));
    EXPECT_TRUE(OnVectors(positions.View()) == OneByOne(positions.View())) << count;
    DecidedPositions without = positions.View();
    without.advantages = {};
    EXPECT_TRUE(OnVectors(without) == OneByOne(without)) << count << " without advantages";
    EXPECT_EQ(OnVectors(without).plain.gradient_mass, 0);
  }
}

// Uses the largest possible addends.
TEST_P(OnEveryTarget, NothingOverflows) {
  for (const float log_ratio : {1.3862943f, 2.7725887f, 88.0f, -64.0f, -90.0f}) {
    for (const Decision decision : {Decision::kAccepted, Decision::kRejected}) {
      Positions positions;
      for (int i = 0; i < 3000; ++i) positions.Push(decision, log_ratio, 5.0f, 0.5f, 0.5f, 16.0f);
      EXPECT_TRUE(OnVectors(positions.View()) == OneByOne(positions.View())) << log_ratio;
    }
  }
}

TEST_P(OnEveryTarget, AnyCutGivesTheSame) {
  const Positions positions = RandomPositions(4000, 5);
  std::mt19937 random(6);
  Statistics sum;
  for (size_t first = 0; first < positions.size();) {
    const size_t count = std::min<size_t>(positions.size() - first, 1 + random() % 300);
    sum += OnVectors(positions.View(first, count));
    first += count;
  }
  EXPECT_TRUE(sum == OnVectors(positions.View()));
}

// The positive and the negative sum are kept separately, so that each of them only grows.
TEST(StatisticsTest, TheSumOfLogEnvelopesIsThePositiveOnesLessTheNegativeOnes) {
  const Positions positions = RandomPositions(5000, 8);
  const DecidedPositions view = positions.View();
  int64_t positive = 0, negative = 0;
  for (size_t i = 0; i < positions.size(); ++i) {
    if (!view.scored(i)) continue;
    const int64_t fixed = Fixed(view.log_envelopes[i]);
    (fixed > 0 ? positive : negative) += std::abs(fixed);
  }
  ASSERT_GT(negative, 0);
  EXPECT_EQ(OneByOne(view).negative_log_envelope, negative);
  EXPECT_EQ(SumsAt(view).log_envelope + negative, positive);
}

TEST(StatisticsTest, BoundsBelongToTheBucketBelow) {
  const auto buckets = [](float value) {
    Positions one;
    one.Push(Decision::kRejected, value, value, 1.0f - value, value, 0.0f);
    const Statistics statistics = OneByOne(one.View());
    const auto index = [](const auto& counts) {
      return std::ranges::find(counts, 1) - counts.begin();
    };
    return std::array{index(statistics.abs_log_ratio), index(statistics.log_envelope),
                      index(statistics.residual_mass), index(statistics.acceptance_probability)};
  };
  EXPECT_EQ(buckets(0.0f), (std::array<long, 4>{0, 0, 0, 0}));
  EXPECT_EQ(buckets(0.25f), (std::array<long, 4>{8, 8, 12, 4}));
  EXPECT_EQ(buckets(0.25f + 0x1p-20f), (std::array<long, 4>{9, 9, 13, 5}));
  EXPECT_EQ(buckets(1.0f), (std::array<long, 4>{10, 10, 14, 16}));
}

TEST(StatisticsTest, LargeWeightsCountAs1024) {
  Positions positions;
  positions.Push(Decision::kRejected, 88.0f, 99.0f, 0.5f, 0.0f, 1e30f);
  const Statistics statistics = OneByOne(positions.View());
  EXPECT_EQ(FromCountedWeight(statistics.plain.weight), 1024);
  EXPECT_EQ(FromCountedWeight(statistics.plain.weight_squared), 1024 * 1024);
  EXPECT_EQ(FromCountedWeight(statistics.plain.gradient_mass), 1024);
  EXPECT_EQ(FromFixed(statistics.plain.abs_log_weight), 64);
}

TEST(StatisticsTest, WeightsOfAnyKindAddUpAlike) {
  const Positions positions = RandomPositions(3000, 11);
  const DecidedPositions view = positions.View();
  std::vector<float> ratios(view.decisions.size());
  std::vector<float> modified(ratios.size());
  std::vector<float> log_modified(ratios.size());
  for (size_t i = 0; i < ratios.size(); ++i) {
    if (!view.scored(i)) continue;
    ratios[i] = Exp32(view.log_ratios[i]);
    const bool accepted = view.decisions[i] == Decision::kAccepted;
    modified[i] = accepted ? 1.0f : ratios[i];
    log_modified[i] = accepted ? 0.0f : view.log_ratios[i];
  }
  const Statistics statistics = OneByOne(view);
  EXPECT_TRUE(SumsOf(view, ratios) == statistics.plain);
  EXPECT_TRUE(SumsOf(view, ModifiedRatios{modified, log_modified}) == statistics.applied);
  const CorrectionSums zero = ZeroEverywhere(statistics.plain);
  EXPECT_TRUE(SumsOf(view, std::vector<float>(ratios.size(), 0.0f)) == zero);
}

}  // namespace
}  // namespace sis
