#include "server/cache/space_saving.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

namespace sis {
namespace {

TEST(SpaceSavingTest, ExactWhileCountersLast) {
  SpaceSaving counts(3);
  for (const int32_t token : {5, 7, 5, 9, 5}) counts.Add(token);
  EXPECT_EQ(counts.Of(5).count, 3u);
  EXPECT_EQ(counts.Of(9).count, 1u);
  EXPECT_EQ(counts.Of(9).error, 0u);
  EXPECT_EQ(counts.total(), 5u);
}

TEST(SpaceSavingTest, NoCounterIsNoCount) {
  SpaceSaving counts(3);
  counts.Add(5);
  EXPECT_EQ(counts.Of(6).count, 0u);
  EXPECT_EQ(counts.Of(6).error, 0u);
}

// Checks the paper's bounds against exact counts of a skewed and a uniform stream.
TEST(SpaceSavingTest, BoundsHold) {
  constexpr size_t kCounters = 32;
  for (const double skew : {0.0, 1.2}) {
    SCOPED_TRACE(skew);
    std::mt19937 random(11);
    std::vector<double> weights;
    for (int rank = 1; rank <= 500; ++rank) weights.push_back(std::pow(rank, -skew));
    std::discrete_distribution<int32_t> tokens(weights.begin(), weights.end());
    std::map<int32_t, uint64_t> exact;
    SpaceSaving counts(kCounters);
    for (int i = 0; i < 20000; ++i) {
      const int32_t token = tokens(random);
      ++exact[token];
      counts.Add(token);
    }
    EXPECT_EQ(counts.tokens().size(), kCounters);
    for (int32_t token = 0; token < 500; ++token) {
      const SpaceSaving::Count found = counts.Of(token);
      EXPECT_GE(found.count, exact[token]) << token;
      EXPECT_LE(found.count, exact[token] + found.error) << token;
      EXPECT_LE(found.error, counts.total() / kCounters) << token;
    }
    // Every token that occurs more often has a counter.
    const std::vector<int32_t> listed = counts.tokens();
    for (const auto& [token, count] : exact) {
      if (count <= counts.total() / kCounters) continue;
      EXPECT_TRUE(std::ranges::count(listed, token)) << token;
    }
  }
}

}  // namespace
}  // namespace sis
