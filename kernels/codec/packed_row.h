// Sixteen values of a few bits each, one after the other: value i takes the bits from i * width on,
// where bit b of a row is bit b % 8 of its byte b / 8, the least significant first.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "kernels/encoding.h"

namespace sis {

using RowValues = std::array<uint32_t, kGroupPositions>;

constexpr size_t PackedRowBytes(int width) { return kGroupPositions * width / 8; }

// Every value must be below 2^width, width in [1, 32]; `to` holds PackedRowBytes(width).
inline void PackRow(const RowValues& values, int width, std::span<std::byte> to) {
  std::byte* next = to.data();
  uint64_t pending = 0;
  int bits = 0;
  for (const uint32_t value : values) {
    pending |= uint64_t{value} << bits;
    bits += width;
    if (bits >= 32) {
      std::memcpy(next, &pending, 4);
      next += 4;
      pending >>= 32;
      bits -= 32;
    }
  }
  // A row has a whole number of 16-bit words.
  if (bits > 0) std::memcpy(next, &pending, 2);
}

inline RowValues UnpackRow(std::span<const std::byte> from, int width) {
  const uint64_t mask = (uint64_t{1} << width) - 1;
  const size_t size = PackedRowBytes(width);
  size_t next = 0;
  RowValues values;
  uint64_t pending = 0;
  int bits = 0;
  for (uint32_t& value : values) {
    if (bits < width) {
      uint32_t word = 0;
      if (next + 4 <= size) {
        std::memcpy(&word, from.data() + next, 4);
      } else {
        std::memcpy(&word, from.data() + next, 2);
      }
      next += 4;
      pending |= uint64_t{word} << bits;
      bits += 32;
    }
    value = static_cast<uint32_t>(pending & mask);
    pending >>= width;
    bits -= width;
  }
  return values;
}

}  // namespace sis
