// The one exponential of the project: the same bits on every machine (docs/numerics.md, section 3).
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/numerics/host_device.h"

namespace sis {

// The steps of e^x for x in [-87, 88]: x = n ln 2 + r, and s = e^r - 1 - r.
struct Exp32Steps {
  float n;  // an integer
  float r;
  float s;
};

// Correct only where the compiler does not fuse multiplications with additions.
SIS_HOST_DEVICE inline Exp32Steps StepsOfExp32(float x) {
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
  return {n, r, (r * r) * p};
}

// Returns e^x from its `steps`.
SIS_HOST_DEVICE inline float FinishExp32(const Exp32Steps& steps) {
  const auto exponent = static_cast<uint32_t>(static_cast<int32_t>(steps.n) + 127);
  return (1.0f + (steps.r + steps.s)) * std::bit_cast<float>(exponent << 23);
}

// Returns e^x within 0.99 units in the last place for x in [-87, 88]; 0 below, e^88 above. x must
// not be NaN. Never above 1 for x <= 0, never subnormal.
SIS_HOST_DEVICE inline float Exp32(float x) {
  if (x < -87.0f) return 0.0f;
  if (x > 88.0f) x = 88.0f;
  return FinishExp32(StepsOfExp32(x));
}

// Returns e^x - 1 - x, limited to the value at 88. Precise near 0, where the plain difference would
// be lost in rounding. x must not be NaN. Never negative (docs/numerics.md, section 8).
SIS_HOST_DEVICE inline float Excess32(float x) {
  if (x < -87.0f) return -1.0f - x;
  if (x > 88.0f) x = 88.0f;
  const Exp32Steps steps = StepsOfExp32(x);
  return steps.n == 0.0f ? steps.s : (FinishExp32(steps) - 1.0f) - x;
}

}  // namespace sis
