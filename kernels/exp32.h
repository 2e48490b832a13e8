// The one exponential of the project: the same bits on every machine (docs/numerics.md, section 3).
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/host_device.h"

namespace sis {

// e^x within 0.99 units in the last place for x in [-87, 88]; 0 below, e^88 above. x must not be
// NaN. Never above 1 for x <= 0, never subnormal. Correct only where the compiler does not fuse
// multiplications with additions.
SIS_HOST_DEVICE inline float Exp32(float x) {
  if (x < -87.0f) return 0.0f;
  if (x > 88.0f) x = 88.0f;
  constexpr float kLog2E = 0x1.715476p+0f;
  constexpr float kRound = 0x1.8p+23f;  // adding it leaves the nearest integer in the low bits
  // ln 2 in two parts: the first has so few bits that n * kLn2High is exact.
  constexpr float kLn2High = 0x1.63p-1f;
  constexpr float kMinusLn2Low = 0x1.bd0106p-13f;

  const float n = (x * kLog2E + kRound) - kRound;
  float r = x - n * kLn2High;
  r = r + n * kMinusLn2Low;

  float p = 0x1.6a243ap-10f;
  p = p * r + 0x1.1239ep-7f;
  p = p * r + 0x1.5558f2p-5f;
  p = p * r + 0x1.555492p-3f;
  p = p * r + 0x1.fffffcp-2f;
  const float e = 1.0f + (r + (r * r) * p);

  const auto exponent = static_cast<uint32_t>(static_cast<int32_t>(n) + 127);
  return e * std::bit_cast<float>(exponent << 23);
}

}  // namespace sis
