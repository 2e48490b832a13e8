#include "kernels/numerics/exp_sum.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace sis {
namespace {

TEST(BlockReference, IsTheLeastMultipleOfEightThatIsNoSmaller) {
  EXPECT_EQ(BlockReference(0.0f), 0.0f);
  EXPECT_EQ(BlockReference(0.001f), 8.0f);
  EXPECT_EQ(BlockReference(8.0f), 8.0f);
  EXPECT_EQ(BlockReference(std::nextafter(8.0f, 9.0f)), 16.0f);
  EXPECT_EQ(BlockReference(-0.001f), 0.0f);
  EXPECT_EQ(BlockReference(-8.0f), -8.0f);
  EXPECT_EQ(BlockReference(std::nextafter(-8.0f, 0.0f)), 0.0f);
  EXPECT_EQ(BlockReference(std::nextafter(-8.0f, -9.0f)), -8.0f);
  // Where floats are coarse, and where an int32 would overflow.
  EXPECT_EQ(BlockReference(0x1.000002p+24f), 0x1p+24f + 8.0f);
  EXPECT_EQ(BlockReference(0x1p+26f), 0x1p+26f);
  EXPECT_EQ(BlockReference(std::numeric_limits<float>::max()), std::numeric_limits<float>::max());
  EXPECT_EQ(BlockReference(std::numeric_limits<float>::lowest()),
            std::numeric_limits<float>::lowest());
}

TEST(BlockReference, TakesSubnormalsForZero) {
  EXPECT_EQ(BlockReference(std::numeric_limits<float>::denorm_min()), 0.0f);
  EXPECT_EQ(BlockReference(0x1p-101f), 0.0f);
  EXPECT_EQ(BlockReference(0x1p-100f), 8.0f);
}

std::vector<ExpSum> RandomBlocks(uint32_t seed, int count, float spread) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> logits(-spread, spread);
  std::uniform_real_distribution<float> log2_sum(-11, 10);
  std::vector<ExpSum> blocks(count);
  for (ExpSum& block : blocks) {
    block.AddBlock(BlockReference(logits(random)), std::exp2(log2_sum(random)));
  }
  return blocks;
}

TEST(ExpSum, MergesInAnyOrderAndGroupingToTheSameBits) {
  std::mt19937 random(3);
  for (const float spread : {1.0f, 20.0f, 60.0f, 1e4f, 1e38f}) {
    std::vector<ExpSum> blocks = RandomBlocks(7, 256, spread);
    ExpSum expected;
    for (const ExpSum& block : blocks) expected.Merge(block);
    for (int trial = 0; trial < 100; ++trial) {
      std::ranges::shuffle(blocks, random);
      std::vector<ExpSum> merged = blocks;
      while (merged.size() > 1) {  // any two neighbours
        const auto i = static_cast<ptrdiff_t>(random() % (merged.size() - 1));
        merged[i].Merge(merged[i + 1]);
        merged.erase(merged.begin() + i + 1);
      }
      ASSERT_EQ(merged[0], expected) << "spread " << spread;
    }
  }
}

TEST(ExpSum, IsExactWithinItsReferences) {
  const std::vector<ExpSum> blocks =
      RandomBlocks(11, 256, 15.9f);  // references -8 to 16: none is dropped
  ExpSum sum;
  long double expected = 0;
  for (const ExpSum& block : blocks) {
    sum.Merge(block);
    expected += static_cast<long double>(block.sums[0]) * std::exp(0.0L + block.reference);
  }
  const double log_expected = static_cast<double>(std::log(expected) - 36 * std::log(2.0L));
  EXPECT_NEAR(LogSumExp(sum), log_expected, 1e-14);
}

TEST(ExpSum, DropsOnlyWhatIsFarBelow) {
  ExpSum sum;
  sum.AddBlock(0.0f, 1.0f);
  sum.AddBlock(-40.0f, 1.0f);
  EXPECT_EQ(sum.sums[5], int64_t{1} << 36);
  sum.AddBlock(-48.0f, 1.0f);
  sum.AddBlock(-1e38f, 1.0f);
  EXPECT_EQ(sum.sums[0], int64_t{1} << 36);
  EXPECT_EQ(sum.sums[5], int64_t{1} << 36);
  sum.AddBlock(8.0f, 1.0f);  // now -40 is too far
  EXPECT_EQ(sum.sums[1], int64_t{1} << 36);
  EXPECT_EQ(sum.sums[5], 0);
  EXPECT_EQ(sum.reference, 8.0f);
}

TEST(ExpSum, EmptyIsNeutral) {
  ExpSum sum;
  EXPECT_EQ(LogSumExp(sum), kMinusInfinity);
  sum.Merge(ExpSum());
  EXPECT_EQ(sum, ExpSum());
  ExpSum one;
  one.AddBlock(16.0f, 0.5f);
  sum.Merge(one);
  EXPECT_EQ(sum, one);
  one.Merge(ExpSum());
  EXPECT_EQ(sum, one);
}

TEST(Log64, AgreesWithTheLibrary) {
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> exponents(-40, 60);
  EXPECT_EQ(Log64(1.0), 0.0);
  for (int i = 0; i < 1'000'000; ++i) {
    const double x = std::exp2(exponents(random));
    ASSERT_NEAR(Log64(x), std::log(x), 0x1p-50 * std::max(1.0, std::abs(std::log(x)))) << x;
  }
  for (int i = -100'000; i <= 100'000; ++i) {
    const double x = 1 + 1e-8 * i;
    ASSERT_NEAR(Log64(x), std::log(x), 0x1p-50) << x;
  }
}

// Computed by another implementation of docs/dense_numerics.md, section 3; every machine must give
// these bits.
TEST(Log64, KnownBits) {
  EXPECT_EQ(Log64(2.0), 0x1.62e42fefa39efp-1);
  EXPECT_EQ(Log64(151936.0), 0x1.7dcc82aefe0d0p+3);
  EXPECT_EQ(Log64(0x1.3p-12), -0x1.04ab57d790d24p+3);
}

}  // namespace
}  // namespace sis
