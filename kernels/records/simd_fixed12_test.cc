#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/numerics/simd_targets.h"
#include "kernels/records/encoding.h"
#include "kernels/records/fixed12.h"
#include "kernels/records/log_probs.h"
#include "kernels/records/packed_row.h"
// After the list of the targets that are built.
#include "hwy/targets.h"

namespace sis {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// A row that can be encoded in any way: values next to those of codes, ties, values around the
// floor, around the top and around 0, unused slots.
std::vector<float> RandomRow(std::mt19937& random, size_t slots) {
  std::vector<float> row;
  const uint32_t multiplier = random() % 2 == 0 ? 1 + random() % 20 : 1 + random() % 4095;
  const size_t used = random() % 4 == 0 ? random() % (slots + 1) : slots;
  const float spread = std::exp2(static_cast<float>(random() % 24) - 16.0f);
  while (row.size() < used) {
    float value = -spread * static_cast<float>(random() % 4096) / 4096.0f;
    if (random() % 3 == 0) value = DecodeFixed12(random() % 4095, multiplier);
    if (random() % 40 == 0) value = kFixed12Floor;
    if (random() % 40 == 0) value = -65.0f;
    if (random() % 40 == 0) value = 0x1p-6f;
    if (random() % 40 == 0) value = random() % 2 == 0 ? 0.0f : -0.0f;
    if (random() % 40 == 0) value = random() % 2 == 0 ? 0x1p-149f : -0x1p-149f;
    if (random() % 40 == 0) value = -0x1p-18f;
    if (random() % 3 == 0) value = std::nextafter(value, random() % 2 == 0 ? 1.0f : kMinusInfinity);
    row.push_back(std::min(value, 0x1p-6f));
    if (random() % 8 == 0 && row.size() < used) row.push_back(row.back());
  }
  std::ranges::sort(row, std::greater<>());
  row.resize(slots, kMinusInfinity);
  return row;
}

struct Encoded {
  uint32_t multiplier;
  std::vector<uint32_t> codes;
  std::vector<float> values;
  uint16_t used;
};

// By fixed12.h, one by one.
Encoded OneByOne(const std::vector<float>& row) {
  float lowest = 0x1p-6f;
  for (const float x : row) lowest = x >= kFixed12Floor ? std::min(lowest, x) : lowest;
  Encoded encoded{.multiplier = Fixed12Multiplier(lowest), .codes = {}, .values = {}, .used = 0};
  for (const float x : row) {
    encoded.codes.push_back(Fixed12RoundedDown(x, encoded.multiplier));
    encoded.values.push_back(DecodeFixed12(encoded.codes.back(), encoded.multiplier));
    encoded.used += encoded.codes.back() != kFixed12MinusInfinity;
  }
  return encoded;
}

std::vector<std::byte> Group(const std::vector<Encoded>& positions, size_t first, size_t slots) {
  constexpr size_t kRowBytes = RowBytes(LogProbEncoding::kFixed12);
  std::vector<std::byte> bytes;
  const auto add_row = [&](const auto& value) {
    RowValues values;
    for (size_t lane = 0; lane < kGroupPositions; ++lane)
      values[lane] = value(positions[first + lane]);
    bytes.resize(bytes.size() + kRowBytes);
    PackRow(values, 12, std::span(bytes).last(kRowBytes));
  };
  add_row([](const Encoded& position) { return position.multiplier; });
  for (size_t rank = 0; rank < slots; ++rank) {
    add_row([rank](const Encoded& position) { return position.codes[rank]; });
  }
  return bytes;
}

// Rows of one slot, next to where the multiplier changes.
void ExpectEveryMultiplier() {
  std::vector<float> rows;
  for (uint32_t multiplier = 1; multiplier <= kFixed12MaxMultiplier; ++multiplier) {
    const float lowest = DecodeFixed12(kFixed12LowestCode, multiplier);
    for (const float x : {lowest, std::nextafter(lowest, 1.0f), std::nextafter(lowest, -64.0f)}) {
      rows.push_back(std::max(x, kFixed12Floor));
    }
  }
  rows.resize(rows.size() / kGroupPositions * kGroupPositions);
  std::vector<Encoded> expected;
  for (const float row : rows) expected.push_back(OneByOne({row}));
  std::vector<std::byte> expected_bytes;
  for (size_t first = 0; first < rows.size(); first += kGroupPositions) {
    const std::vector<std::byte> group = Group(expected, first, 1);
    expected_bytes.insert(expected_bytes.end(), group.begin(), group.end());
  }
  std::vector<uint16_t> used(rows.size());
  std::vector<std::byte> bytes(expected_bytes.size());
  ASSERT_TRUE(EncodeGroupsOnVectors(rows, 1, used, bytes, {}));
  ASSERT_EQ(bytes, expected_bytes);
}

void ExpectSameAsOneByOne() {
  std::mt19937 random(41);
  for (int i = 0; i < 400; ++i) {
    const size_t slots = 1 + random() % (i % 8 == 0 ? 512 : 34);
    const size_t n = kGroupPositions * (1 + random() % 3);
    std::vector<float> rows;
    std::vector<Encoded> expected;
    std::vector<float> expected_values;
    std::vector<uint16_t> expected_used;
    for (size_t position = 0; position < n; ++position) {
      const std::vector<float> row = RandomRow(random, slots);
      expected.push_back(OneByOne(row));
      rows.insert(rows.end(), row.begin(), row.end());
      expected_values.insert(expected_values.end(), expected.back().values.begin(),
                             expected.back().values.end());
      expected_used.push_back(expected.back().used);
    }
    std::vector<std::byte> expected_bytes;
    for (size_t first = 0; first < n; first += kGroupPositions) {
      const std::vector<std::byte> group = Group(expected, first, slots);
      expected_bytes.insert(expected_bytes.end(), group.begin(), group.end());
    }

    std::vector<float> rounded(rows.size());
    std::vector<uint16_t> used(n);
    ASSERT_TRUE(RoundRowsOnVectors(rows, static_cast<int>(slots), rounded, used));
    ASSERT_EQ(rounded, expected_values) << "K " << slots;
    ASSERT_EQ(used, expected_used) << "K " << slots;

    std::vector<std::byte> bytes(expected_bytes.size());
    for (const std::span<float> to : {std::span<float>(), std::span(rounded)}) {
      std::ranges::fill(rounded, 77.0f);
      std::ranges::fill(used, uint16_t{77});
      std::ranges::fill(bytes, std::byte{77});
      ASSERT_TRUE(EncodeGroupsOnVectors(rows, static_cast<int>(slots), used, bytes, to));
      ASSERT_EQ(bytes, expected_bytes) << "K " << slots;
      ASSERT_EQ(used, expected_used) << "K " << slots;
    }
    ASSERT_EQ(rounded, expected_values) << "K " << slots;
  }
}

TEST(SimdFixed12Test, SameAsOneByOneOnEveryTarget) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (target == HWY_SCALAR) continue;  // leaves it to the caller
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    ExpectSameAsOneByOne();
    ExpectEveryMultiplier();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace
}  // namespace sis
