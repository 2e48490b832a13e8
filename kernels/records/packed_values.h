// Values of a few bits each, one after the other without end: value i takes the bits from i * width
// on, as in a packed row (packed_row.h), and zeros fill the last byte up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace sis {

constexpr size_t PackedValueBytes(size_t count, int width) {
  return (count * static_cast<size_t>(width) + 7) / 8;
}

// The first values of a width in [1, 15], 16 bits each; zeros where there are no bytes any more.
// to.size() is a multiple of 4.
inline void UnpackToHalves(std::span<const std::byte> bytes, int width, std::span<uint16_t> to) {
  const uint64_t ones = (uint64_t{1} << width) - 1;
  const uint64_t two = (uint64_t{1} << 2 * width) - 1;
  const uint64_t one = ones * 0x0000000100000001;
  for (size_t i = 0; i < to.size(); i += 4) {
    const size_t bit = i * static_cast<size_t>(width);
    const size_t byte = bit / 8;
    uint64_t word = 0;
    if (byte + sizeof(word) <= bytes.size()) {
      std::memcpy(&word, bytes.data() + byte, sizeof(word));
    } else if (byte < bytes.size()) {
      std::memcpy(&word, bytes.data() + byte, bytes.size() - byte);
    }
    word >>= bit % 8;
    // Four values side by side move apart: in halves, one by one.
    word = (word & two) | (word >> 2 * width & two) << 32;
    word = (word & one) | (word >> width & one) << 16;
    std::memcpy(to.data() + i, &word, sizeof(word));
  }
}

// Reads values of one width, in [1, 32].
class PackedValues {
 public:
  PackedValues(std::span<const std::byte> bytes, int width)
      : bytes_(bytes), width_(width), mask_((uint64_t{1} << width) - 1) {}

  // Value i. Bytes that are not there read as zeros: who reads what was not checked reads anything,
  // but nothing elsewhere.
  uint32_t At(size_t i) const {
    const size_t bit = i * static_cast<size_t>(width_);
    const size_t byte = bit / 8;
    uint64_t word = 0;
    if (byte + sizeof(word) <= bytes_.size()) {
      std::memcpy(&word, bytes_.data() + byte, sizeof(word));
    } else if (byte < bytes_.size()) {
      std::memcpy(&word, bytes_.data() + byte, bytes_.size() - byte);
    }
    return static_cast<uint32_t>(word >> (bit % 8) & mask_);
  }

 private:
  const std::span<const std::byte> bytes_;
  const int width_;
  const uint64_t mask_;
};

}  // namespace sis
