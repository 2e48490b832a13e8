#include "kernels/records/fixed12.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#ifdef __SSE2__
#include <xmmintrin.h>
#endif

#include "gtest/gtest.h"

namespace sis {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kTop = 0x1p-6f;

float StepOf(uint32_t multiplier) { return std::ldexp(static_cast<float>(multiplier), -18); }

// x and its two neighbours, all within what may be encoded.
template <typename Function>
void WithNeighbours(float x, const Function& function) {
  function(x);
  function(std::nextafter(x, -kInfinity));
  if (x < kTop) function(std::nextafter(x, kInfinity));
}

TEST(Fixed12, EveryCodeOfEveryMultiplierIsExactHoweverItIsComputed) {
  for (uint32_t multiplier = 1; multiplier <= kFixed12MaxMultiplier; ++multiplier) {
    const float step = StepOf(multiplier);
    for (uint32_t code = 0; code <= kFixed12LowestCode; ++code) {
      const double value = (4096.0 - static_cast<double>(code) * multiplier) * 0x1p-18;
      const float decoded = DecodeFixed12(code, multiplier);
      ASSERT_EQ(static_cast<double>(decoded), value) << code << " " << multiplier;
      ASSERT_EQ(decoded, std::fma(-static_cast<float>(code), step, kTop));
    }
    ASSERT_EQ(DecodeFixed12(kFixed12MinusInfinity, multiplier), -kInfinity);
  }
}

TEST(Fixed12, EveryCodeOfEveryMultiplierRoundsToItself) {
  for (uint32_t multiplier = 1; multiplier <= kFixed12MaxMultiplier; ++multiplier) {
    for (uint32_t code = 0; code <= kFixed12MinusInfinity; ++code) {
      const float value = DecodeFixed12(code, multiplier);
      ASSERT_EQ(Fixed12RoundedDown(value, multiplier), code) << multiplier;
    }
  }
}

// The result is below x, and the next code is above.
void ExpectJustBelow(float x, uint32_t multiplier) {
  const uint32_t code = Fixed12RoundedDown(x, multiplier);
  if (x < DecodeFixed12(kFixed12LowestCode, multiplier)) {
    ASSERT_EQ(code, kFixed12MinusInfinity) << x << " " << multiplier;
    return;
  }
  ASSERT_LE(DecodeFixed12(code, multiplier), x) << multiplier;
  if (code > 0) {
    ASSERT_GT(DecodeFixed12(code - 1, multiplier), x) << multiplier;
  }
}

TEST(Fixed12, RoundsDownWhatLiesAroundEveryCode) {
  for (uint32_t multiplier = 1; multiplier <= kFixed12MaxMultiplier; multiplier += 13) {
    for (uint32_t code = 0; code <= kFixed12LowestCode; ++code) {
      WithNeighbours(DecodeFixed12(code, multiplier),
                     [&](float x) { ExpectJustBelow(x, multiplier); });
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Fixed12, RoundsDownEveryFloat32) {
  for (const uint32_t multiplier : {1u, 2u, 513u, 1000u, 2050u, 4094u, 4095u}) {
    for (uint32_t bits = 0x80000000; bits < 0xFF800000; bits += 499) {
      ExpectJustBelow(std::bit_cast<float>(bits), multiplier);
      if (HasFatalFailure()) return;
    }
    for (uint32_t bits = 0; bits <= std::bit_cast<uint32_t>(kTop); bits += 499) {
      ExpectJustBelow(std::bit_cast<float>(bits), multiplier);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Fixed12, TheMultiplierIsTheSmallestThatReaches) {
  uint32_t previous = 1;
  const auto expect_smallest = [&](float lowest) {
    const uint32_t multiplier = Fixed12Multiplier(lowest);
    ASSERT_GE(multiplier, 1);
    ASSERT_LE(multiplier, kFixed12MaxMultiplier);
    ASSERT_LE(DecodeFixed12(kFixed12LowestCode, multiplier), lowest) << lowest;
    if (multiplier > 1) {
      ASSERT_GT(DecodeFixed12(kFixed12LowestCode, multiplier - 1), lowest) << lowest;
    }
    // So a position that was encoded before gets the multiplier it had.
    const float again = DecodeFixed12(Fixed12RoundedDown(lowest, multiplier), multiplier);
    ASSERT_EQ(Fixed12Multiplier(again), multiplier) << lowest;
    ASSERT_GE(multiplier, previous);
  };
  const uint32_t floor_bits = std::bit_cast<uint32_t>(kFixed12Floor);
  for (uint32_t bits = 0x80000000; bits <= floor_bits; bits += 61) {
    const float lowest = std::bit_cast<float>(bits);
    expect_smallest(lowest);
    if (HasFatalFailure()) return;
    previous = Fixed12Multiplier(lowest);
  }
  EXPECT_EQ(Fixed12Multiplier(kTop), 1);
  EXPECT_EQ(Fixed12Multiplier(kFixed12Floor), kFixed12MaxMultiplier);
}

TEST(Fixed12, IsMonotone) {
  for (const uint32_t multiplier : {1u, 777u, 4095u}) {
    uint32_t down = 0;
    for (uint32_t bits = 0x80000000; bits < 0xFF800000; bits += 1009) {
      const float x = std::bit_cast<float>(bits);
      ASSERT_GE(Fixed12RoundedDown(x, multiplier), down) << x;
      down = Fixed12RoundedDown(x, multiplier);
    }
  }
}

// By hand from the definition: 4096 + 2 * 2^18 units of depth, in 4094 steps of at most 130 units.
TEST(Fixed12, KnownAnswers) {
  EXPECT_EQ(Fixed12Multiplier(-2.0f), 130);
  EXPECT_EQ(Fixed12RoundedDown(-2.0f, 130), 4065);
  EXPECT_EQ(Fixed12RoundedDown(-0.5f, 130), 1040);
  EXPECT_EQ(DecodeFixed12(1040, 130), (4096 - 135200) * 0x1p-18f);
  EXPECT_EQ(kFixed12Floor, -16760834 * 0x1p-18f);
}

TEST(Fixed12, SpecialValues) {
  constexpr float kSmallest = std::numeric_limits<float>::denorm_min();
  constexpr uint32_t kMultiplier = 512;  // a step of 1/512: code 8 is 0
  EXPECT_EQ(Fixed12RoundedDown(0.0f, kMultiplier), 8);
  EXPECT_EQ(Fixed12RoundedDown(-0.0f, kMultiplier), 8);
  EXPECT_EQ(Fixed12RoundedDown(-kSmallest, kMultiplier), 9);
  EXPECT_EQ(Fixed12RoundedDown(kSmallest, kMultiplier), 8);
  EXPECT_EQ(Fixed12RoundedDown(kTop, kMultiplier), 0);
  EXPECT_EQ(Fixed12RoundedDown(-kInfinity, kMultiplier), kFixed12MinusInfinity);
  EXPECT_EQ(Fixed12RoundedDown(-65504.0f, 4095), kFixed12MinusInfinity);
  EXPECT_EQ(Fixed12RoundedDown(kFixed12Floor, 4095), kFixed12LowestCode);
  EXPECT_EQ(Fixed12RoundedDown(std::nextafter(kFixed12Floor, -kInfinity), 4095),
            kFixed12MinusInfinity);
}

#ifdef __SSE2__
TEST(Fixed12, FlushedSubnormalsChangeNothing) {
  constexpr float kSmallest = std::numeric_limits<float>::denorm_min();
  const auto codes = [] {
    std::vector<uint32_t> codes;
    for (volatile float x : {-kSmallest, kSmallest, -0x1p-127f, 0x1p-127f, -0.0f, -0x1p-126f}) {
      codes.push_back(Fixed12Multiplier(x));
      codes.push_back(Fixed12RoundedDown(x, 512));
    }
    return codes;
  };
  const std::vector<uint32_t> expected = codes();
  const unsigned mode = _mm_getcsr();
  constexpr unsigned kFlushToZeroAndDenormalsAreZero = 0x8040;
  _mm_setcsr(mode | kFlushToZeroAndDenormalsAreZero);
  const std::vector<uint32_t> flushed = codes();
  _mm_setcsr(mode);
  EXPECT_EQ(flushed, expected);
}
#endif

}  // namespace
}  // namespace sis
