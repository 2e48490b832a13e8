// What the scalar and the SIMD implementation of the dense kernel have in common: one row, one sum.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/decide/dense/dense.h"
#include "kernels/numerics/float16.h"

namespace sis {

// The logits of one position.
struct LogitRow {
  LogitType type;
  const std::byte* data;
  int32_t width;
  int32_t vocabulary_offset;
};

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
  return row.type == LogitType::kFloat16 ? DecodeFloat16(half)
                                         : std::bit_cast<float>(static_cast<uint32_t>(half) << 16);
}

// Sums a row into `sum`, which is overwritten. False if the row holds NaN or +inf; `sum` is then
// anything. Both give the same bytes.
bool SumRowScalar(const LogitRow& row, ExpSum& sum);
bool SumRowSimd(const LogitRow& row, ExpSum& sum);

// The log-sum-exp by float64 and the C library, for tests: what the sums above approximate.
double LogSumExpReference(const LogitRow& row);

}  // namespace sis
