// How fixed16 rounds (docs/record_block.md).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/block/block.h"

namespace sis {

// No code stands for a log-prob below.
inline constexpr float kFloor16 =
    (4096.0f - static_cast<float>(kLowestCode16 * kMaxMultiplier16)) * 0x1p-18f;

// How far a log-prob in [kFloor16, 1/64] lies below 1/64, in units of 2^-18, rounded up.
inline uint32_t Depth16(float log_prob) {
  return static_cast<uint32_t>(4096.0f - std::floor(log_prob * 0x1p18f));
}

inline uint16_t Code16(uint32_t depth, uint32_t multiplier) {
  return static_cast<uint16_t>((depth + multiplier - 1) / multiplier);
}

// With it kLowestCode16 reaches the depth.
inline uint8_t LeastMultiplier16(uint32_t depth) {
  return static_cast<uint8_t>(std::max(1u, (depth + kLowestCode16 - 1) / kLowestCode16));
}

}  // namespace sis
