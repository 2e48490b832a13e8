#include "kernels/numerics/log64.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "gtest/gtest.h"

namespace sis {
namespace {

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

// Computed by another implementation of docs/numerics.md, section 11; every machine must give
// these bits.
TEST(Log64, KnownBits) {
  EXPECT_EQ(Log64(2.0), 0x1.62e42fefa39efp-1);
  EXPECT_EQ(Log64(151936.0), 0x1.7dcc82aefe0d0p+3);
  EXPECT_EQ(Log64(0x1.3p-12), -0x1.04ab57d790d24p+3);
}

}  // namespace
}  // namespace sis
