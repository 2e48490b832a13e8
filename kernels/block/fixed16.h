// The rounding of fixed16 (docs/record_block.md).
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/block/block.h"

namespace sis {

// The lowest log-prob that a code can represent.
inline constexpr float kFloor16 =
    (4096.0f - static_cast<float>(kLowestCode16 * kMaxMultiplier16)) * 0x1p-18f;

// Returns the distance of a log-prob in [kFloor16, 1/64] below 1/64, in units of 2^-18, rounded up.
inline uint32_t Depth16(float log_prob) {
  const float scaled = log_prob * 0x1p18f;
  const auto towards_0 = static_cast<int32_t>(scaled);
  const int32_t floor = static_cast<float>(towards_0) > scaled ? towards_0 - 1 : towards_0;
  return static_cast<uint32_t>(4096 - floor);
}

// Returns the code of a depth; above kLowestCode16 if the multiplier is too small.
inline uint32_t Code16(uint32_t depth, uint32_t multiplier) {
  return (depth + multiplier - 1) / multiplier;
}

// Returns the smallest multiplier with which kLowestCode16 reaches the depth.
inline uint8_t LeastMultiplier16(uint32_t depth) {
  return static_cast<uint8_t>(std::max(1u, (depth + kLowestCode16 - 1) / kLowestCode16));
}

}  // namespace sis
