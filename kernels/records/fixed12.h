// Log-probs in 12 bits: whole multiples of a step that each position chooses for itself, counted
// down from 1/64.
//
// A position has a multiplier m in [1, 4095]; code c stands for (4096 - c * m) * 2^-18, and 4095
// for -inf. Both factors have 12 bits, so every value is an exact float32, and so is each operation
// on the way to it: fused or not, 1/64 - c * (m * 2^-18) gives the same bits on every machine.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "kernels/numerics/host_device.h"

namespace sis {

inline constexpr uint32_t kFixed12MinusInfinity = 4095;
inline constexpr uint32_t kFixed12LowestCode = 4094;
inline constexpr uint32_t kFixed12MaxMultiplier = 4095;

SIS_HOST_DEVICE constexpr float DecodeFixed12(uint32_t code, uint32_t multiplier) {
  // So that compilers put it on vectors: signed integers, which become floats in one instruction,
  // and nothing to jump over.
  const float step = static_cast<float>(static_cast<int32_t>(multiplier)) * 0x1p-18f;
  const float value = 0x1p-6f - static_cast<float>(static_cast<int32_t>(code)) * step;
  const uint32_t unused = code == kFixed12MinusInfinity ? 0xffffffffu : 0;
  const auto infinity = std::bit_cast<uint32_t>(-std::numeric_limits<float>::infinity());
  return std::bit_cast<float>((std::bit_cast<uint32_t>(value) & ~unused) | (infinity & unused));
}

// Nothing lower can be encoded: about -63.94.
inline constexpr float kFixed12Floor = DecodeFixed12(kFixed12LowestCode, kFixed12MaxMultiplier);

namespace fixed12_internal {

inline constexpr int32_t kTop = 4096;  // 1/64 in units of 2^-18

// x in units of 2^-18, rounded down or up; x in [-64, 1/64]. The sign is looked at too, because a
// machine that flushes subnormals takes the smallest x for 0.
SIS_HOST_DEVICE constexpr int32_t FloorUnits(float x) {
  const float scaled = x * 0x1p18f;
  const auto units = static_cast<int32_t>(scaled);
  const bool below_zero = std::bit_cast<uint32_t>(x) > 0x80000000u;
  return static_cast<float>(units) > scaled || (units == 0 && below_zero) ? units - 1 : units;
}

SIS_HOST_DEVICE constexpr int32_t CeilUnits(float x) {
  const float scaled = x * 0x1p18f;
  const auto units = static_cast<int32_t>(scaled);
  const bool above_zero = std::bit_cast<int32_t>(x) > 0;
  return static_cast<float>(units) < scaled || (units == 0 && above_zero) ? units + 1 : units;
}

}  // namespace fixed12_internal

// The smallest multiplier whose codes reach down to `lowest`, in [kFixed12Floor, 1/64]: the
// position's lowest value that is not below the floor.
SIS_HOST_DEVICE constexpr uint32_t Fixed12Multiplier(float lowest) {
  using namespace fixed12_internal;
  const auto depth = static_cast<uint32_t>(kTop - FloorUnits(lowest));
  const uint32_t multiplier = (depth + kFixed12LowestCode - 1) / kFixed12LowestCode;
  return multiplier == 0 ? 1 : multiplier;
}

// The code of the largest value that is not above x: kFixed12MinusInfinity if no code is that low.
// x is at most 1/64.
SIS_HOST_DEVICE constexpr uint32_t Fixed12RoundedDown(float x, uint32_t multiplier) {
  using namespace fixed12_internal;
  if (x < kFixed12Floor) return kFixed12MinusInfinity;
  const auto depth = static_cast<uint32_t>(kTop - FloorUnits(x));
  const uint32_t code = (depth + multiplier - 1) / multiplier;
  return code <= kFixed12LowestCode ? code : kFixed12MinusInfinity;
}

// The code of the smallest value that is not below x: for low finite x the lowest there is. x is at
// most 1/64.
SIS_HOST_DEVICE constexpr uint32_t Fixed12RoundedUp(float x, uint32_t multiplier) {
  using namespace fixed12_internal;
  if (x == -std::numeric_limits<float>::infinity()) return kFixed12MinusInfinity;
  if (x < kFixed12Floor) return kFixed12LowestCode;
  const uint32_t code = static_cast<uint32_t>(kTop - CeilUnits(x)) / multiplier;
  return code <= kFixed12LowestCode ? code : kFixed12LowestCode;
}

}  // namespace sis
