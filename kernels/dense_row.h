// What the scalar and the SIMD implementation of the dense kernel have in common: one row, one sum.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/dense.h"

namespace sis {

// The logits of one position.
struct LogitRow {
  LogitType type;
  const std::byte* data;
  int32_t width;
  int32_t vocabulary_offset;
};

inline float Float16ToFloat32(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(half & 0x7fffu) << 13;
  constexpr uint32_t kExponent = 0x1fu << 23;
  uint32_t bits = 0;
  if ((magnitude & kExponent) == kExponent) {  // infinity or NaN
    bits = magnitude + (uint32_t{255 - 31} << 23);
  } else if ((magnitude & kExponent) ==
             0) {  // subnormal: no operation here touches a float32 subnormal
    const float normal = std::bit_cast<float>(magnitude + (uint32_t{113} << 23)) - 0x1p-14f;
    bits = std::bit_cast<uint32_t>(normal);
  } else {
    bits = magnitude + (uint32_t{127 - 15} << 23);
  }
  return std::bit_cast<float>(bits | sign);
}

// The logit of a column, exactly.
inline float LogitAt(const LogitRow& row, int32_t column) {
  const std::byte* source = row.data + static_cast<size_t>(column) * LogitBytes(row.type);
  if (row.type == LogitType::kFloat32) {
    float logit;
    std::memcpy(&logit, source, sizeof(logit));
    return logit;
  }
  uint16_t half;
  std::memcpy(&half, source, sizeof(half));
  return row.type == LogitType::kFloat16 ? Float16ToFloat32(half)
                                         : std::bit_cast<float>(static_cast<uint32_t>(half) << 16);
}

// Sums a row into `sum`, which is overwritten. False if the row holds NaN or +inf; `sum` is then
// anything. Both give the same bytes.
bool SumRowScalar(const LogitRow& row, ExpSum& sum);
bool SumRowSimd(const LogitRow& row, ExpSum& sum);

// The log-sum-exp by float64 and the C library, for tests: what the sums above approximate.
double LogSumExpReference(const LogitRow& row);

}  // namespace sis
