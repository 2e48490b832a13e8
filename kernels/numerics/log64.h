// The natural logarithm with the same bits on every machine (docs/numerics.md, section 11).
#pragma once

#include <bit>
#include <cstdint>

namespace sis {

// Returns ln x, within 2^-50 of max(1, |ln x|), by float64 operations that every machine rounds
// equally. x must be positive, finite and normal.
inline double Log64(double x) {
  constexpr uint64_t kSqrtHalf = 0x3fe6a09e667f3bcd;  // the bits of 1/sqrt(2)
  const auto bits = std::bit_cast<uint64_t>(x);
  const int64_t n = static_cast<int64_t>(bits - kSqrtHalf) >> 52;
  // In [1/sqrt(2), sqrt(2)); ln z = 2 atanh(f).
  const auto z = std::bit_cast<double>(bits - (static_cast<uint64_t>(n) << 52));
  const double f = (z - 1.0) / (z + 1.0);
  const double g = f * f;
  double p = 1.0 / 19;
  p = p * g + 1.0 / 17;
  p = p * g + 1.0 / 15;
  p = p * g + 1.0 / 13;
  p = p * g + 1.0 / 11;
  p = p * g + 1.0 / 9;
  p = p * g + 1.0 / 7;
  p = p * g + 1.0 / 5;
  p = p * g + 1.0 / 3;
  p = p * g + 1.0;
  constexpr double kLn2 = 0x1.62e42fefa39efp-1;
  return static_cast<double>(n) * kLn2 + (2.0 * f) * p;
}

}  // namespace sis
