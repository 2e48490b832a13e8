// Sums over positions in fixed point: the order of addition does not matter (docs/numerics.md,
// section 8).
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/numerics/host_device.h"

namespace sis {

// Returns x in units of 2^-kFixedBits, truncated towards zero, after limiting x to [-64, 64]. x
// must not be NaN.
inline constexpr int kFixedBits = 30;
SIS_HOST_DEVICE inline int64_t Fixed(float x) {
  x = x > 64.0f ? 64.0f : x;
  x = x < -64.0f ? -64.0f : x;
  return static_cast<int64_t>(x * 0x1p30f);
}

// Returns the nearest double to the sum of a Fixed.
inline double FromFixed(int64_t sum) { return static_cast<double>(sum) * 0x1p-30; }

// Adds structures field by field. They must have only int64_t fields.
template <typename T>
T& AddEach(const T& from, T& into) {
  static_assert(sizeof(T) % sizeof(int64_t) == 0 && alignof(T) == alignof(int64_t));
  using Fields = std::array<int64_t, sizeof(T) / sizeof(int64_t)>;
  const auto addends = std::bit_cast<Fields>(from);
  auto sums = std::bit_cast<Fields>(into);
  for (size_t i = 0; i < sums.size(); ++i) sums[i] += addends[i];
  return into = std::bit_cast<T>(sums);
}

// Counts of positions, and fixed-point sums over the scored ones (accepted, rejected, outside
// top-K).
struct Sums {
  int64_t accepted = 0;
  int64_t rejected = 0;
  int64_t outside_top_k = 0;
  int64_t missing = 0;
  int64_t envelope_violations = 0;
  int64_t d = 0;
  int64_t d_sis = 0;
  int64_t log_envelope = 0;
  int64_t residual_mass = 0;
  int64_t acceptance_probability = 0;
  int64_t expected_acceptance = 0;
  int64_t k3 = 0;
  int64_t total_variation = 0;  // 0 unless requested
  int64_t masked = 0;
  // Number of positions with invalid current values (section 2). If not 0, the other sums are
  // undefined.
  int64_t invalid = 0;

  int64_t scored() const { return accepted + rejected + outside_top_k; }

  Sums& operator+=(const Sums& other) { return AddEach(other, *this); }

  friend bool operator==(const Sums&, const Sums&) = default;
};

// The sums at a point of the prefix curve, as if only the point's k slots were used.
struct PrefixSums {
  int64_t residual_mass = 0;
  int64_t expected_acceptance = 0;

  PrefixSums& operator+=(const PrefixSums& other) { return AddEach(other, *this); }

  friend bool operator==(const PrefixSums&, const PrefixSums&) = default;
};

}  // namespace sis
