#include "kernels/records/simd_ids.h"

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/numerics/simd_targets.h"
#include "kernels/records/encoding.h"
#include "kernels/records/packed_row.h"
// After the list of the targets that are built.
#include "hwy/targets.h"

namespace sis {
namespace {

// With slots unused or dropped by the encoding. Nothing behind the rows is written.
void ExpectSameAsOneByOne(std::mt19937& random, size_t slots, int bits) {
  const size_t positions = kGroupPositions * (1 + random() % 4);
  std::vector<int32_t> sampled_ids(positions);
  std::vector<int32_t> ids(positions * slots);
  std::vector<uint16_t> used(positions);
  for (int32_t& id : sampled_ids) id = static_cast<int32_t>(random() >> (32 - bits));
  for (size_t i = 0; i < positions; ++i) {
    used[i] = static_cast<uint16_t>(random() % 2 == 0 ? slots : random() % (slots + 1));
    for (size_t slot = 0; slot < slots; ++slot) {
      const bool has_id = slot < used[i] || random() % 2 == 0;
      ids[i * slots + slot] = has_id ? static_cast<int32_t>(random() >> (32 - bits)) : -1;
    }
  }
  std::vector<std::byte> expected;
  for (size_t first = 0; first < positions; first += kGroupPositions) {
    for (size_t row = 0; row <= slots; ++row) {
      RowValues values{};
      for (size_t lane = 0; lane < kGroupPositions; ++lane) {
        const size_t i = first + lane;
        if (row == 0) values[lane] = sampled_ids[i];
        if (row > 0 && row <= used[i]) values[lane] = ids[i * slots + row - 1];
      }
      expected.resize(expected.size() + PackedRowBytes(bits));
      PackRow(values, bits, std::span(expected).last(PackedRowBytes(bits)));
    }
  }
  const size_t packed_bytes = expected.size();
  expected.resize(packed_bytes + 64, std::byte{0xA5});
  std::vector<std::byte> packed(expected.size(), std::byte{0xA5});
  ASSERT_TRUE(PackIdsOnVectors(
      {.sampled_ids = sampled_ids, .sampled_log_probs = {}, .ids = ids, .log_probs = {}},
      static_cast<int>(slots), used, bits, std::span(packed).first(packed_bytes)));
  ASSERT_EQ(packed, expected) << "K " << slots << ", " << bits << " bits";
}

void ExpectSameAsOneByOne() {
  std::mt19937 random(20260109);
  for (int bits = 1; bits <= 24; ++bits) {
    for (size_t slots = 1; slots <= 128; slots += slots < 20 ? 1 : 27) {
      ExpectSameAsOneByOne(random, slots, bits);
    }
  }
}

TEST(SimdIdsTest, SameAsOneByOneOnEveryTarget) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (target == HWY_SCALAR) continue;  // leaves it to the caller
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    ExpectSameAsOneByOne();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace
}  // namespace sis
