// IEEE 754 binary16 with directed rounding, by integer arithmetic alone: the same bits on every
// machine.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/numerics/host_device.h"
#ifdef __CUDACC__
#include <cuda_fp16.h>
#endif

namespace sis {

// Exact; the same as F16C and NEON give. NaN becomes some NaN.
SIS_HOST_DEVICE inline float DecodeFloat16(uint16_t half) {
#ifdef __CUDA_ARCH__
  return __half2float(__ushort_as_half(half));  // one instruction
#else
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t magnitude = half & 0x7FFF;
  if (magnitude >= 0x7C00)
    return std::bit_cast<float>(sign | 0x7F800000 | (magnitude & 0x3FF) << 13);
  if (magnitude >= 0x400) return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
  const float value = static_cast<float>(magnitude) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
#endif
}

namespace float16_internal {

// The largest float16 magnitude that is not above the float32 magnitude. Finite ones never become
// infinite.
SIS_HOST_DEVICE inline uint16_t Truncate(uint32_t magnitude) {
  constexpr uint32_t kInfinity = 0x7F800000;
  constexpr uint32_t kTwoTo16 = (127u + 16) << 23;
  constexpr uint32_t kSmallestNormal = (127u - 14) << 23;
  constexpr uint32_t kSmallest = (127u - 24) << 23;
  if (magnitude >= kInfinity) return 0x7C00;
  if (magnitude >= kTwoTo16) return 0x7BFF;
  if (magnitude >= kSmallestNormal) return static_cast<uint16_t>((magnitude - (112u << 23)) >> 13);
  if (magnitude < kSmallest) return 0;
  const uint32_t significand = (magnitude & 0x7FFFFF) | 0x800000;
  return static_cast<uint16_t>(significand >> (126 - (magnitude >> 23)));
}

// The smallest that is not below it. Above 65504 that is infinity.
SIS_HOST_DEVICE inline uint16_t Expand(uint32_t magnitude) {
  const uint16_t truncated = Truncate(magnitude);
  const bool exact = std::bit_cast<uint32_t>(DecodeFloat16(truncated)) == magnitude;
  return exact ? truncated : static_cast<uint16_t>(truncated + 1);
}

}  // namespace float16_internal

// The largest float16 that is not above x; -inf below -65504. x must not be NaN.
SIS_HOST_DEVICE inline uint16_t Float16RoundedDown(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (bits != magnitude) return float16_internal::Expand(magnitude) | 0x8000;
  return float16_internal::Truncate(magnitude);
}

}  // namespace sis
