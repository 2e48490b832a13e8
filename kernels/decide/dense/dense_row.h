// One row of logits: a single value, and the exact sum of all.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/decide/dense/dense.h"
#include "kernels/numerics/exp_sum.h"

namespace sis {

inline float LogitAt(const LogitRow& row, int32_t id) {
  const std::byte* source = row.data + static_cast<size_t>(id) * LogitBytes(row.type);
  if (row.type == LogitType::kFloat32) {
    float logit;
    std::memcpy(&logit, source, sizeof(logit));
    return logit;
  }
  uint16_t half;
  std::memcpy(&half, source, sizeof(half));
  return std::bit_cast<float>(static_cast<uint32_t>(half) << 16);
}

// Sums a row into `sum`, which is overwritten. False if the row holds NaN or +inf; `sum` is then
// anything.
bool SumRow(const LogitRow& row, ExpSum& sum);

// The definition, which gives the same bytes: column after column.
bool SumRowScalar(const LogitRow& row, ExpSum& sum);

}  // namespace sis
