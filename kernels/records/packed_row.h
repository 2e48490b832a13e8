// Sixteen values of a few bits each, one after the other: value i takes the bits from i * width on,
// where bit b of a row is bit b % 8 of its byte b / 8, the least significant first.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>

#include "kernels/records/encoding.h"

namespace sis {

using RowValues = std::array<uint32_t, kGroupPositions>;
using RowValuesView = std::span<const uint32_t, kGroupPositions>;

constexpr size_t PackedRowBytes(int width) { return kGroupPositions * width / 8; }

namespace packed_row_internal {

// Value kIndex into the words of 32 bits that are written as they get full; all shifts are known to
// the compiler.
template <int kWidth, int kIndex>
void PackValue(RowValuesView values, uint64_t& pending, std::byte* to) {
  constexpr int kBits = kIndex * kWidth % 32;  // that are pending
  pending |= uint64_t{values[kIndex]} << kBits;
  if constexpr (kBits + kWidth >= 32) {
    std::memcpy(to + size_t{kIndex * kWidth / 32} * 4, &pending, 4);
    pending >>= 32;
  }
}

template <int kWidth>
void PackRow(RowValuesView values, std::byte* to) {
  uint64_t pending = 0;
  [&]<int... kIndices>(std::integer_sequence<int, kIndices...>) {
    (PackValue<kWidth, kIndices>(values, pending, to), ...);
  }
  (std::make_integer_sequence<int, kGroupPositions>());
  // A row has a whole number of 16-bit words.
  if constexpr (kWidth % 2 != 0) std::memcpy(to + PackedRowBytes(kWidth) - 2, &pending, 2);
}

using Packer = void (*)(RowValuesView, std::byte*);

inline constexpr std::array<Packer, 32> kPackers =
    []<int... kWidths>(std::integer_sequence<int, kWidths...>) {
  return std::array<Packer, 32>{PackRow<kWidths + 1>...};
}
(std::make_integer_sequence<int, 32>());

// Value kIndex, read from a word that holds it and lies within the row.
template <int kWidth, int kIndex>
uint32_t UnpackValue(const std::byte* from) {
  using Word = std::conditional_t<kWidth == 1, uint16_t,
                                  std::conditional_t<kWidth <= 25, uint32_t, uint64_t>>;
  constexpr size_t kFirstBit = size_t{kIndex} * kWidth;
  constexpr size_t kByte = std::min(kFirstBit / 8, PackedRowBytes(kWidth) - sizeof(Word));
  Word word;
  std::memcpy(&word, from + kByte, sizeof(word));
  constexpr uint64_t kMask = (uint64_t{1} << kWidth) - 1;
  return static_cast<uint32_t>((word >> (kFirstBit - 8 * kByte)) & kMask);
}

template <int kWidth>
void UnpackRow(const std::byte* from, RowValues& values) {
  [&]<int... kIndices>(std::integer_sequence<int, kIndices...>) {
    ((values[kIndices] = UnpackValue<kWidth, kIndices>(from)), ...);
  }
  (std::make_integer_sequence<int, kGroupPositions>());
}

using Unpacker = void (*)(const std::byte*, RowValues&);

inline constexpr std::array<Unpacker, 32> kUnpackers =
    []<int... kWidths>(std::integer_sequence<int, kWidths...>) {
  return std::array<Unpacker, 32>{UnpackRow<kWidths + 1>...};
}
(std::make_integer_sequence<int, 32>());

}  // namespace packed_row_internal

// Every value must be below 2^width, width in [1, 32]; `to` holds PackedRowBytes(width).
inline void PackRow(RowValuesView values, int width, std::span<std::byte> to) {
  packed_row_internal::kPackers[width - 1](values, to.data());
}

// Consecutive rows: `from` holds PackedRowBytes(width) of each, width in [1, 32]; nothing beyond it
// is read.
inline void UnpackRows(std::span<const std::byte> from, int width, std::span<RowValues> rows) {
  const std::byte* row = from.data();
  for (RowValues& values : rows) {
    packed_row_internal::kUnpackers[width - 1](row, values);
    row += PackedRowBytes(width);
  }
}

inline RowValues UnpackRow(std::span<const std::byte> from, int width) {
  RowValues values;
  UnpackRows(from, width, {&values, 1});
  return values;
}

}  // namespace sis
