#include "kernels/decide/algorithms/sequence_trust_region.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/decide/algorithms/top_k_divergences.h"

namespace sis {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(EstimatedDivergenceTest, IsThatOfTheLogRatioUpToTwentyNats) {
  for (const float size : {1e-6f, 1e-3f, 0.1f, 0.49f, 0.5f, 0.51f, 2.0f, 19.0f, 21.0f, kInfinity}) {
    for (const float log_ratio : {size, -size}) {
      const double x = std::fmin(20.0, std::fmax(-20.0, double{log_ratio}));
      EXPECT_EQ(EstimatedDivergence(Divergence::kK1, log_ratio), -x);
      EXPECT_EQ(EstimatedDivergence(Divergence::kK2, log_ratio), x * x / 2);
      // Where the series ends, a unit in the last place of exp32.
      const double k3 = std::expm1(x) - x;
      const double relative = size <= 0.5f ? 1e-9 : 3e-6;
      EXPECT_NEAR(EstimatedDivergence(Divergence::kK3, log_ratio), k3, relative * k3) << log_ratio;
    }
  }
  EXPECT_EQ(EstimatedDivergence(Divergence::kK3, 0.0f), 0.0);
}

TEST(SequenceDivergenceTest, PutsTokensTogether) {
  SequenceDivergence of;
  for (const Aggregate aggregate : {Aggregate::kSum, Aggregate::kMean, Aggregate::kMax}) {
    EXPECT_EQ(of.Of(aggregate), 0.0);
  }
  for (const double value : {-3.0, -1.0, -2.0}) of.Add(value);
  EXPECT_EQ(of.Of(Aggregate::kSum), -6.0);
  EXPECT_EQ(of.Of(Aggregate::kMean), -2.0);
  EXPECT_EQ(of.Of(Aggregate::kMax), -1.0);
}

TEST(SequenceTrustRegionTest, WhatIsOnABoundIsWithin) {
  const SequenceTrustRegion region{.lower = -1.0, .upper = 2.0};
  EXPECT_TRUE(region.Holds(-1.0) && region.Holds(2.0));
  EXPECT_FALSE(region.Holds(std::nextafter(2.0, 3.0)) || region.Holds(std::nextafter(-1.0, -2.0)));
  EXPECT_FALSE(region.Holds(std::nan("")));
}

// Of two policies over eight tokens, as more and more of them are seen.
TEST(TopKKlDivergenceTest, IsALowerBoundThatRisesToTheDivergence) {
  for (int draw = 0; draw < 100; ++draw) {
    std::vector<double> q, p;
    double q_sum = 0, p_sum = 0;
    for (int v = 0; v < 8; ++v) {
      q.push_back(std::exp(2 * std::sin(7.1 * draw + 3.3 * v)));
      p.push_back(q.back() * std::exp(std::cos(1.7 * draw + 5.9 * v)));
      q_sum += q.back();
      p_sum += p.back();
    }
    double whole = 0, last = 0;
    for (int v = 0; v < 8; ++v) {
      q[v] /= q_sum;
      p[v] /= p_sum;
      whole += q[v] * std::log(q[v] / p[v]);
    }
    TopKKlDivergence seen;
    for (int v = 0; v < 8; ++v) {
      seen.Add(static_cast<float>(std::log(q[v])), static_cast<float>(std::log(p[v])));
      const double now = seen.Finish();
      EXPECT_GE(now, last - 1e-5);
      EXPECT_LE(now, whole + 1e-5);
      last = now;
    }
    EXPECT_NEAR(last, whole, 1e-5);
    EXPECT_GT(whole, 1e-3);
  }
}

TEST(TopKKlDivergenceTest, ATokenThatTheCurrentPolicyExcludesCountsTwentyNats) {
  TopKKlDivergence excluded;
  excluded.Add(std::log(0.5f), -kInfinity);
  excluded.Add(std::log(0.5f), 0.0f);
  EXPECT_NEAR(excluded.Finish(), 0.5 * 20 + 0.5 * std::log(0.5), 1e-5);
  TopKKlDivergence unused;
  unused.Add(-kInfinity, -1.0f);
  EXPECT_EQ(unused.Finish(), 0.0f);
}

}  // namespace
}  // namespace sis
