#include "kernels/records/packed_values.h"

#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/records/packed_row.h"
#include "kernels/records/packed_value_writer.h"

namespace sis {
namespace {

TEST(PackedValues, AreReadAsTheyWereWritten) {
  std::mt19937 random(1);
  for (int width = 1; width <= 32; ++width) {
    for (const size_t count : {0, 1, 2, 7, 16, 17, 83}) {
      std::vector<uint32_t> values(count);
      for (uint32_t& value : values) {
        value = static_cast<uint32_t>(random() & ((uint64_t{1} << width) - 1));
      }
      // Nothing is written beyond them, and nothing read: a sanitizer sees the latter.
      std::vector<std::byte> bytes(PackedValueBytes(count, width) + 1, std::byte{0xA5});
      PackedValueWriter writer(bytes.data(), width);
      for (const uint32_t value : values) writer.Put(value);
      writer.Finish();
      EXPECT_EQ(bytes.back(), std::byte{0xA5});
      bytes.pop_back();
      bytes.shrink_to_fit();
      const PackedValues read(bytes, width);
      for (size_t i = 0; i < count; ++i) EXPECT_EQ(read.At(i), values[i]) << width << " " << i;
      EXPECT_EQ(read.At(count + 16), 0);
    }
  }
}

TEST(PackedValues, OfFewBitsAreUnpackedAtOnce) {
  std::mt19937 random(3);
  for (int width = 1; width <= 15; ++width) {
    for (const size_t count : {0, 1, 7, 8, 9, 16, 83}) {
      std::vector<uint16_t> values((count + 23) / 4 * 4);
      for (size_t i = 0; i < count; ++i) {
        values[i] = static_cast<uint16_t>(random() & ((1u << width) - 1));
      }
      // Exactly as long: a sanitizer sees a read beyond it.
      std::vector<std::byte> bytes(PackedValueBytes(count, width));
      PackedValueWriter writer(bytes.data(), width);
      for (size_t i = 0; i < count; ++i) writer.Put(values[i]);
      writer.Finish();
      std::vector<uint16_t> unpacked(values.size(), 0xA5A5);
      UnpackToHalves(bytes, width, unpacked);
      EXPECT_EQ(unpacked, values) << width << " " << count;
    }
  }
}

TEST(PackedValues, LieAsRowsDo) {
  std::mt19937 random(2);
  for (int width = 1; width <= 32; ++width) {
    RowValues values;
    for (uint32_t& value : values) {
      value = static_cast<uint32_t>(random() & ((uint64_t{1} << width) - 1));
    }
    std::vector<std::byte> row(PackedRowBytes(width));
    PackRow(values, width, row);
    std::vector<std::byte> bytes(PackedValueBytes(values.size(), width));
    PackedValueWriter writer(bytes.data(), width);
    for (const uint32_t value : values) writer.Put(value);
    writer.Finish();
    EXPECT_EQ(bytes, row) << width;
  }
}

}  // namespace
}  // namespace sis
