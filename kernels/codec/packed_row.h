// Sixteen values of a few bits each, one after the other: value i takes the bits from i * width on,
// where bit b of a row is bit b % 8 of its byte b / 8, the least significant first.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/encoding.h"

namespace sis {

using RowValues = std::array<uint32_t, kGroupPositions>;

constexpr size_t PackedRowBytes(int width) { return kGroupPositions * width / 8; }

// Every value must be below 2^width, width in [1, 32]; `to` holds PackedRowBytes(width).
inline void PackRow(const RowValues& values, int width, std::span<std::byte> to) {
  uint64_t pending = 0;
  int bits = 0;
  size_t next = 0;
  for (const uint32_t value : values) {
    pending |= uint64_t{value} << bits;
    for (bits += width; bits >= 8; bits -= 8, pending >>= 8) {
      to[next++] = static_cast<std::byte>(pending);
    }
  }
}

inline RowValues UnpackRow(std::span<const std::byte> from, int width) {
  const uint64_t mask = (uint64_t{1} << width) - 1;
  RowValues values;
  uint64_t pending = 0;
  int bits = 0;
  size_t next = 0;
  for (uint32_t& value : values) {
    for (; bits < width; bits += 8) {
      pending |= static_cast<uint64_t>(from[next++]) << bits;
    }
    value = static_cast<uint32_t>(pending & mask);
    pending >>= width;
    bits -= width;
  }
  return values;
}

}  // namespace sis
