#include "kernels/numerics/float16.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "gtest/gtest.h"

namespace sis {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// From the definition of binary16.
float Expected(uint16_t half) {
  const int exponent = (half >> 10) & 31;
  const int fraction = half & 0x3FF;
  const float sign = (half & 0x8000) != 0 ? -1.0f : 1.0f;
  if (exponent == 31) return sign * kInfinity;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  return sign * std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
}

bool IsNanCode(uint16_t half) { return (half & 0x7FFF) > 0x7C00; }

// The neighbour above in the order of the numbers.
uint16_t Next(uint16_t half) {
  if (half == 0x8000) return 1;
  return (half & 0x8000) != 0 ? half - 1 : half + 1;
}

TEST(Float16, DecodesEveryCodeBitByBit) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const auto half = static_cast<uint16_t>(code);
    if (IsNanCode(half)) {
      EXPECT_TRUE(std::isnan(DecodeFloat16(half))) << code;
    } else {
      EXPECT_EQ(std::bit_cast<uint32_t>(DecodeFloat16(half)),
                std::bit_cast<uint32_t>(Expected(half)))
          << code;
    }
  }
}

TEST(Float16, EveryCodeRoundsToItself) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const auto half = static_cast<uint16_t>(code);
    if (IsNanCode(half)) continue;
    EXPECT_EQ(Float16RoundedDown(DecodeFloat16(half)), half);
  }
}

// The result is not above x, and no code lies between them: that is all that directed rounding
// means.
void ExpectRoundedDown(float x) {
  const uint16_t down = Float16RoundedDown(x);
  ASSERT_LE(DecodeFloat16(down), x) << x;
  if (DecodeFloat16(down) == x) return;
  ASSERT_GT(DecodeFloat16(Next(down)), x) << x;
}

// Every finite negative float32 at a stride that hits all fractions, then those around every
// float16.
TEST(Float16, RoundsEveryFloat32Down) {
  for (uint32_t bits = 0x80000000; bits < 0xFF800000; bits += 97) {
    ExpectRoundedDown(std::bit_cast<float>(bits));
    if (HasFatalFailure()) return;
  }
  for (uint32_t code = 0x8000; code <= 0xFC00; ++code) {
    const float value = DecodeFloat16(static_cast<uint16_t>(code));
    if (code < 0xFC00) ExpectRoundedDown(std::nextafter(value, -kInfinity));
    if (code < 0xFC00) ExpectRoundedDown(std::nextafter(value, kInfinity));
    if (HasFatalFailure()) return;
  }
}

TEST(Float16, RoundsPositiveLogProbsDown) {
  for (uint32_t bits = 0; bits <= std::bit_cast<uint32_t>(0x1p-6f); bits += 89) {
    ExpectRoundedDown(std::bit_cast<float>(bits));
    if (HasFatalFailure()) return;
  }
  EXPECT_EQ(DecodeFloat16(Float16RoundedDown(0x1p-6f)), 0x1p-6f);
}

TEST(Float16, IsMonotone) {
  float down = -kInfinity;
  for (uint32_t bits = 0xFF7FFFFF; bits > 0x80000000; bits -= 101) {
    const float x = std::bit_cast<float>(bits);
    const float next_down = DecodeFloat16(Float16RoundedDown(x));
    ASSERT_GE(next_down, down) << x;
    down = next_down;
    if (bits < 0x80000000 + 101) break;
  }
}

TEST(Float16, SpecialValues) {
  EXPECT_EQ(Float16RoundedDown(0.0f), 0);
  EXPECT_EQ(Float16RoundedDown(-0.0f), 0x8000);
  EXPECT_EQ(Float16RoundedDown(-kInfinity), 0xFC00);
  EXPECT_EQ(Float16RoundedDown(-65504.0f), 0xFBFF);
  EXPECT_EQ(Float16RoundedDown(-65505.0f), 0xFC00);
  // The smallest float32 is subnormal in either format.
  EXPECT_EQ(Float16RoundedDown(-std::numeric_limits<float>::denorm_min()), 0x8001);
  EXPECT_EQ(Float16RoundedDown(std::numeric_limits<float>::denorm_min()), 0);
}

}  // namespace
}  // namespace sis
