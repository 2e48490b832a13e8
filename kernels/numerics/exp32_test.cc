#include "kernels/numerics/exp32.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "gtest/gtest.h"

// Tests every EXP32_STRIDE-th float by bit pattern; exp32_exhaustive_test tests all.
#ifndef EXP32_STRIDE
#define EXP32_STRIDE 199
#endif

namespace sis {
namespace {

constexpr uint32_t kPlusZero = 0;
constexpr uint32_t kMinusZero = 0x80000000;

uint32_t Bits(float x) { return std::bit_cast<uint32_t>(x); }

// Returns one unit in the last place of the float nearest to the positive, normal `exact`.
double UnitInTheLastPlace(double exact) { return std::ldexp(1.0, std::ilogb(exact) - 23); }

TEST(Exp32Test, IsWithinOneUnitInTheLastPlaceOfTheExactValue) {
  for (const auto& [first, last] :
       {std::pair(kPlusZero, Bits(88.0f)), std::pair(kMinusZero, Bits(-87.0f))}) {
    for (uint64_t bits = first; bits <= last; bits += EXP32_STRIDE) {
      const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
      const double exact = std::exp(static_cast<double>(x));
      const float result = Exp32(x);
      // std::exp in double errs by less than 1e-8 of a float's unit.
      const double units = std::abs(result - exact) / UnitInTheLastPlace(exact);
      ASSERT_TRUE(units < 0.99) << "exp32(" << x << ") = " << result << ", off by " << units;
      ASSERT_TRUE(result >= std::numeric_limits<float>::min()) << x << " gives a subnormal";
      if (x <= 0) {
        ASSERT_TRUE(result <= 1.0f) << x << " gives " << result;
      }
    }
  }
}

// Uses the series, because the difference is lost in rounding near 0.
double ExactExcess(double x) {
  if (std::abs(x) > 1) return std::exp(x) - 1 - x;
  double sum = 0;
  double term = 1;
  for (int n = 1; n < 25; ++n) {
    term *= x / n;
    if (n > 1) sum += term;
  }
  return sum;
}

TEST(Excess32Test, IsNeverNegativeAndPreciseEverywhere) {
  // Where n = 0, s is off by a few roundings; elsewhere the result is at least a twentieth of what
  // is subtracted.
  for (double x = 1e-9; x < 87; x *= 1.0001) {
    for (const float signed_x : {static_cast<float>(x), -static_cast<float>(x)}) {
      const float excess = Excess32(signed_x);
      const double exact = ExactExcess(signed_x);
      ASSERT_GE(excess, 0.0f) << signed_x;
      ASSERT_TRUE(std::abs(excess - exact) <= 4e-6 * exact) << signed_x << ": " << excess;
    }
  }
}

TEST(Excess32Test, SpecialValues) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Excess32(0.0f), 0.0f);
  EXPECT_EQ(Excess32(-kInfinity), kInfinity);
  EXPECT_EQ(Excess32(-100.0f), 99.0f);
  EXPECT_EQ(Excess32(std::numeric_limits<float>::max()), Excess32(88.0f));
  EXPECT_EQ(Excess32(88.0f), (Exp32(88.0f) - 1.0f) - 88.0f);
}

}  // namespace
}  // namespace sis
