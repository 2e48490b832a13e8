#include "kernels/numerics/crc32c.h"

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "gtest/gtest.h"

namespace sis {
namespace {

// Computes the CRC bit by bit, as it is defined.
uint32_t Extend(uint32_t crc, std::span<const std::byte> bytes) {
  uint32_t state = ~crc;
  for (const std::byte byte : bytes) {
    state ^= static_cast<uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ ((state & 1) * 0x82F63B78u);
  }
  return ~state;
}

// Lengths that the implementation splits in every way, from a start that isn't 0.
TEST(Crc32cTest, IsTheDefinitionForEveryLength) {
  std::mt19937 random(20260101);
  std::vector<std::byte> bytes(7200);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  uint32_t expected = 0xE3069283;
  for (size_t length = 0;; ++length) {
    ASSERT_EQ(ExtendCrc32c(0xE3069283, std::span(bytes).first(length)), expected) << length;
    if (length == bytes.size()) break;
    expected = Extend(expected, std::span(bytes).subspan(length, 1));
  }
}

TEST(Crc32cTest, IsTheDefinitionAtEveryAlignment) {
  std::mt19937 random(20260102);
  std::vector<std::byte> bytes(3800);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  for (size_t offset = 0; offset < 16; ++offset) {
    for (size_t length = 0; offset + length <= bytes.size(); length += 1 + length / 6) {
      const auto part = std::span(bytes).subspan(offset, length);
      const uint32_t start = random();
      ASSERT_EQ(ExtendCrc32c(start, part), Extend(start, part))
          << "offset " << offset << ", length " << length;
    }
  }
}

}  // namespace
}  // namespace sis
