#include "kernels/records/packed_row.h"

#include <cstring>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sis {
namespace {

TEST(PackedRow, EveryWidthKeepsEveryValueAtItsPlace) {
  std::mt19937 random(1);
  for (int width = 1; width <= 32; ++width) {
    const auto mask = static_cast<uint32_t>((uint64_t{1} << width) - 1);
    RowValues values;
    for (uint32_t& value : values) value = random() & mask;
    values[3] = mask;
    std::vector<std::byte> packed(PackedRowBytes(width));
    PackRow(values, width, packed);
    EXPECT_EQ(UnpackRow(packed, width), values) << width;
    for (int value = 0; value < kGroupPositions; ++value) {
      for (int bit = 0; bit < width; ++bit) {
        const int at = value * width + bit;
        EXPECT_EQ(std::to_integer<uint32_t>(packed[at / 8] >> (at % 8)) & 1,
                  (values[value] >> bit) & 1);
      }
    }
  }
}

TEST(PackedRow, WholeWordsLieAsInMemory) {
  RowValues values;
  for (uint32_t i = 0; i < kGroupPositions; ++i) values[i] = 0x01020304u * i;
  std::vector<std::byte> packed(PackedRowBytes(32));
  PackRow(values, 32, packed);
  EXPECT_EQ(std::memcmp(packed.data(), values.data(), packed.size()), 0);
}

TEST(PackedRow, TwoTwelveBitValuesTakeThreeBytes) {
  RowValues values{0xABC, 0x123};
  std::vector<std::byte> packed(PackedRowBytes(12));
  PackRow(values, 12, packed);
  EXPECT_THAT(std::vector(packed.begin(), packed.begin() + 3),
              testing::ElementsAre(std::byte{0xBC}, std::byte{0x3A}, std::byte{0x12}));
}

}  // namespace
}  // namespace sis
