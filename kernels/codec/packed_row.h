// Sixteen values of a few bits each, one after the other: value i takes the bits from i * width on,
// where bit b of a row is bit b % 8 of its byte b / 8, the least significant first.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include "kernels/encoding.h"

namespace sis {

using RowValues = std::array<uint32_t, kGroupPositions>;

constexpr size_t PackedRowBytes(int width) { return kGroupPositions * width / 8; }

namespace packed_row_internal {

// Value kIndex into the words of 32 bits that are written as they get full; all shifts are known to
// the compiler.
template <int kWidth, int kIndex>
void PackValue(const RowValues& values, uint64_t& pending, std::byte* to) {
  constexpr int kBits = kIndex * kWidth % 32;  // that are pending
  pending |= uint64_t{values[kIndex]} << kBits;
  if constexpr (kBits + kWidth >= 32) {
    std::memcpy(to + kIndex * kWidth / 32 * 4, &pending, 4);
    pending >>= 32;
  }
}

template <int kWidth>
void PackRow(const RowValues& values, std::byte* to) {
  uint64_t pending = 0;
  [&]<int... kIndices>(std::integer_sequence<int, kIndices...>) {
    (PackValue<kWidth, kIndices>(values, pending, to), ...);
  }
  (std::make_integer_sequence<int, kGroupPositions>());
  // A row has a whole number of 16-bit words.
  if constexpr (kWidth % 2 != 0) std::memcpy(to + PackedRowBytes(kWidth) - 2, &pending, 2);
}

using Packer = void (*)(const RowValues&, std::byte*);

inline constexpr std::array<Packer, 32> kPackers =
    []<int... kWidths>(std::integer_sequence<int, kWidths...>) {
  return std::array<Packer, 32>{PackRow<kWidths + 1>...};
}
(std::make_integer_sequence<int, 32>());

}  // namespace packed_row_internal

// Every value must be below 2^width, width in [1, 32]; `to` holds PackedRowBytes(width).
inline void PackRow(const RowValues& values, int width, std::span<std::byte> to) {
  packed_row_internal::kPackers[width - 1](values, to.data());
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
