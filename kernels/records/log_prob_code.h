// One recorded log-prob in each encoding, rounded down, so that no envelope is ever below the true
// one.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/numerics/float16.h"
#include "kernels/numerics/host_device.h"
#include "kernels/records/encoding.h"
#include "kernels/records/fixed12.h"

namespace sis {

// `multiplier` matters to kFixed12 only. x is a log-prob of at most 1/64, not NaN.

SIS_HOST_DEVICE inline float DecodeLogProb(LogProbEncoding encoding, uint32_t code,
                                           uint32_t multiplier) {
  switch (encoding) {
    case LogProbEncoding::kFloat32:
      return std::bit_cast<float>(code);
    case LogProbEncoding::kFloat16:
      return DecodeFloat16(static_cast<uint16_t>(code));
    case LogProbEncoding::kFixed12:
      return DecodeFixed12(code, multiplier);
  }
  return 0;
}

// The code of value `index` of rows, or of values one after the other without end. Those of 12 bits
// lie two in three bytes, the first in the low bits; others are aligned to their elements.
template <LogProbEncoding kEncoding>
SIS_HOST_DEVICE uint32_t CodeAt(const std::byte* values, size_t index) {
  if constexpr (kEncoding == LogProbEncoding::kFixed12) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(values) + index * 3 / 2;
    return (bytes[0] | static_cast<uint32_t>(bytes[1]) << 8) >> index % 2 * 4 & 0xFFF;
  } else if constexpr (kEncoding == LogProbEncoding::kFloat16) {
    return reinterpret_cast<const uint16_t*>(values)[index];
  } else {
    return std::bit_cast<uint32_t>(reinterpret_cast<const float*>(values)[index]);
  }
}

// What is lower can not be encoded.
constexpr float LowestLogProb(LogProbEncoding encoding) {
  switch (encoding) {
    case LogProbEncoding::kFloat32:
      return std::numeric_limits<float>::lowest();
    case LogProbEncoding::kFloat16:
      return -65504.0f;
    case LogProbEncoding::kFixed12:
      return kFixed12Floor;
  }
  return 0;
}

// The code of the largest value that is not above x; that of -inf if no finite one is.
SIS_HOST_DEVICE inline uint32_t EncodeRoundedDown(LogProbEncoding encoding, float x,
                                                  uint32_t multiplier) {
  switch (encoding) {
    case LogProbEncoding::kFloat32:
      return std::bit_cast<uint32_t>(x);
    case LogProbEncoding::kFloat16:
      return Float16RoundedDown(x);
    case LogProbEncoding::kFixed12:
      return Fixed12RoundedDown(x, multiplier);
  }
  return 0;
}

}  // namespace sis
