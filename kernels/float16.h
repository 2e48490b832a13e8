// IEEE 754 binary16 as storage: widening to float32 is exact.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/host_device.h"

namespace sis {

// The value of the half with these bits; infinities stay infinite, NaN stays NaN.
SIS_HOST_DEVICE inline float WidenFloat16(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7fffu;
  if (magnitude < 0x0400u) {  // zero or subnormal: a multiple of 2^-24, normal as a float32
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
  }
  const uint32_t exponent_shift = magnitude < 0x7c00u ? (127u - 15u) << 23 : (255u - 31u) << 23;
  return std::bit_cast<float>(sign | ((magnitude << 13) + exponent_shift));
}

}  // namespace sis
