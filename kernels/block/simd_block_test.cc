// On every target, vectors write, read and check as the definitions do.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/block/block.h"
#include "kernels/block/check.h"
#include "kernels/block/fixed16.h"
#include "kernels/block/read.h"
#include "kernels/numerics/log_prob.h"
#include "kernels/numerics/simd_targets.h"
#include "kernels/testing/random_blocks.h"
// After the list of the targets that are built.
#include "hwy/targets.h"

namespace sis {
namespace {

class SimdBlockTest : public testing::TestWithParam<int64_t> {
 protected:
  SimdBlockTest() { Choose(GetParam()); }
  ~SimdBlockTest() override { Choose(0); }

 private:
  static void Choose(int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

INSTANTIATE_TEST_SUITE_P(EveryTarget, SimdBlockTest,
                         testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& test) { return std::string(hwy::TargetName(test.param)); });

// Returns a block in memory of exact size, so that sanitizers detect reads beyond it.
std::vector<std::byte> BytesOf(const RandomBlock& block) {
  return {block.block().begin(), block.block().end()};
}

// Returns the block with ids of four bytes.
std::vector<std::byte> WithWideIds(const BlockView& block) {
  BlockHeader header = block.header;
  header.id_bytes = 4;
  const BlockLayout from(block.header), to(header);
  std::vector<std::byte> wide(to.end);
  std::memcpy(wide.data(), &header, sizeof header);
  std::copy(block.bytes.begin() + sizeof header, block.bytes.begin() + from.sampled_ids,
            wide.begin() + sizeof header);
  for (size_t i = 0; i < size_t{header.positions} + header.used_slots; ++i) {
    const int32_t id = BlockId(block.sampled_ids, i, block.header.id_bytes);
    std::memcpy(wide.data() + to.sampled_ids + 4 * i, &id, sizeof id);
  }
  SealBlock(wide);
  return wide;
}

struct Shape {
  BlockEncoding encoding;
  size_t slots, positions;
  int32_t vocabulary_size;
  double mass;
};

Shape RandomShape(std::mt19937& random) {
  static constexpr size_t kSlots[] = {1, 2, 3, 4, 5, 8, 10, 16, 17, 24, 25, 64, 65, 254};
  static constexpr size_t kPositions[] = {1, 2, 7, 8, 9, 15, 16, 17, 33, 64};
  return {static_cast<BlockEncoding>(random() % 2), kSlots[random() % std::size(kSlots)],
          kPositions[random() % std::size(kPositions)], random() % 2 == 0 ? 300 : 151936,
          random() % 3 == 0 ? 0.9 : 0.0};
}

RandomBlock BlockOf(const Shape& shape, uint32_t seed) {
  return {
      RandomRecords(shape.slots, shape.vocabulary_size, shape.positions, seed),
      {.encoding = shape.encoding, .vocabulary_size = shape.vocabulary_size, .mass = shape.mass}};
}

TEST_P(SimdBlockTest, WritesBlocksAsDefined) {
  std::mt19937 random(1);
  for (uint32_t i = 0; i < 500; ++i) {
    const Shape shape = RandomShape(random);
    const RandomBlock block = BlockOf(shape, i);
    const BlockHeader& header = block.view.header;
    size_t used = 0;
    for (uint32_t p = 0; p < header.positions; ++p) {
      ASSERT_EQ(BlockId(block.view.sampled_ids, p, header.id_bytes), block.records.sampled_ids[p]);
      const float* const log_probs = block.records.log_probs.data() + p * shape.slots;
      const size_t count = block.view.counts[p];
      if (header.fixed()) {
        ASSERT_EQ(block.view.multipliers[p],
                  LeastMultiplier16(count > 0 ? Depth16(log_probs[count - 1]) : 0));
      }
      for (size_t slot = 0; slot < count; ++slot, ++used) {
        ASSERT_EQ(BlockId(block.view.ids, used, header.id_bytes),
                  block.records.ids[p * shape.slots + slot]);
        float expected = log_probs[slot];
        if (header.fixed()) {
          const uint32_t multiplier = block.view.multipliers[p];
          expected = Fixed16(Code16(Depth16(expected), multiplier), multiplier);
        }
        ASSERT_EQ(block.range().LogProbAt(p, used), expected);
      }
    }
    ASSERT_TRUE(std::ranges::all_of(block.view.bytes.subspan(BlockLayout(header).ids_end),
                                    [](std::byte byte) { return byte == std::byte{0}; }));
  }
}

// Depths at and next to multiples of a multiplier are divided exactly. With smaller multipliers the
// slots would have too much mass.
TEST_P(SimdBlockTest, RoundsExactly) {
  for (uint32_t multiplier = 12; multiplier <= kMaxMultiplier16; ++multiplier) {
    Records records{16, {}, {}, {}, {}};
    std::vector<uint32_t> codes;
    for (uint32_t quotient = kLowestCode16; quotient > kLowestCode16 - 5; --quotient) {
      for (const uint32_t rest : {0u, 1u, multiplier - 1}) {
        codes.push_back(std::min(kLowestCode16, quotient + (rest > 0 ? 1 : 0)));
        const uint32_t depth = std::min(quotient * multiplier + rest, kLowestCode16 * multiplier);
        records.log_probs.push_back((4096 - static_cast<float>(depth)) * 0x1p-18f);
      }
    }
    codes.push_back(kLowestCode16);
    records.log_probs.push_back(Fixed16(kLowestCode16, multiplier));
    std::ranges::sort(codes);
    std::ranges::sort(records.log_probs, std::greater<>());
    for (int32_t id = 0; id < 16; ++id) records.ids.push_back(id);
    records.sampled_ids = {99};
    records.sampled_log_probs = {-1};
    const RandomBlock block(
        records, {.encoding = BlockEncoding::kFixed16, .vocabulary_size = 100, .mass = 0});
    ASSERT_EQ(block.view.multipliers[0], multiplier);
    for (size_t slot = 0; slot < 16; ++slot) {
      ASSERT_EQ(block.range().LogProbAt(0, slot), Fixed16(codes[slot], multiplier)) << multiplier;
    }
  }
}

TEST_P(SimdBlockTest, ReadsBlocksAsDefined) {
  std::mt19937 random(2);
  for (uint32_t i = 0; i < 500; ++i) {
    const Shape shape = RandomShape(random);
    const RandomBlock packed = BlockOf(shape, i);
    const std::vector<std::byte> bytes = i % 4 == 0 ? WithWideIds(packed.view) : BytesOf(packed);
    const BlockView block = *OpenBlock(bytes, /*checksums=*/true);
    const BlockHeader& header = block.header;
    const BlockRange all(block, 0, header.positions);
    for (const size_t slots : {shape.slots, shape.slots + 3}) {
      std::vector<int32_t> sampled_ids(header.positions), ids(header.used_slots);
      std::vector<int32_t> id_rows(header.positions * slots, 7);
      std::vector<float> log_prob_rows(id_rows.size());
      ReadBlockIds(block, sampled_ids, ids);
      ReadBlockIdRows(block, slots, id_rows);
      ReadBlockLogProbRows(block, slots, log_prob_rows);
      size_t used = 0;
      for (uint32_t p = 0; p < header.positions; ++p) {
        ASSERT_EQ(sampled_ids[p], BlockId(block.sampled_ids, p, header.id_bytes));
        for (size_t slot = 0; slot < slots; ++slot) {
          const bool is_used = slot < block.counts[p];
          const int32_t id = is_used ? BlockId(block.ids, used, header.id_bytes) : -1;
          const float log_prob = is_used ? all.LogProbAt(p, used) : kMinusInfinity;
          ASSERT_EQ(id_rows[p * slots + slot], id);
          ASSERT_EQ(log_prob_rows[p * slots + slot], log_prob);
          if (is_used) {
            ASSERT_EQ(ids[used++], id);
          }
        }
      }
    }
  }
}

// Writes a value near the limit of validity to any section.
void Damage(std::mt19937& random, const BlockLayout& at, const BlockHeader& header,
            std::vector<std::byte>& block) {
  const size_t positions = header.positions, slots = header.used_slots;
  const auto write = [&](size_t section, size_t width, size_t count, auto value) {
    if (count == 0) return;
    std::memcpy(block.data() + section + random() % count * width, &value, width);
  };
  const auto copy = [&](size_t section, size_t width, size_t count) {
    if (count == 0) return;
    const size_t index = random() % count;
    const size_t other = random() % 2 == 0 ? random() % count : index == 0 ? 0 : index - 1;
    std::memmove(block.data() + section + index * width, block.data() + section + other * width,
                 width);
  };
  const size_t log_prob_bytes = header.fixed() ? 2 : 4;
  static constexpr float kFloats[] = {0.015625f,
                                      0.015626f,
                                      0.0f,
                                      -0.0f,
                                      -1.0f,
                                      -63.7f,
                                      -90.f,
                                      -1e30f,
                                      kMinusInfinity,
                                      std::numeric_limits<float>::infinity(),
                                      std::numeric_limits<float>::quiet_NaN()};
  switch (random() % 10) {
    case 0:
      return copy(at.log_probs, log_prob_bytes, slots);
    case 1:
      if (header.fixed()) {
        return write(at.log_probs, 2, slots, static_cast<uint16_t>(random() % 3 + 65533));
      }
      return write(at.log_probs, 4, slots, kFloats[random() % std::size(kFloats)]);
    case 2:
      if (header.fixed())
        return write(at.multipliers, 1, positions, static_cast<uint8_t>(random() % 4));
      return copy(at.log_probs, log_prob_bytes, slots);
    case 3:
      return write(at.ranks, 1, positions,
                   static_cast<uint8_t>(random() % 3 == 0 ? 255 : random() % 10));
    case 4:
      return write(at.sampled_log_probs, 4, positions, kFloats[random() % std::size(kFloats)]);
    case 5:
      return copy(at.sampled_ids, header.id_bytes, positions);
    case 6:
      return copy(at.ids, header.id_bytes, slots);
    case 7:
      return write(at.ids, header.id_bytes, slots,
                   static_cast<uint32_t>(header.vocabulary_size + random() % 3 - 1));
    case 8:
      return write(at.sampled_ids, header.id_bytes, positions, ~uint32_t{0});
    case 9: {  // of neighbours
      std::byte& byte = block[at.log_probs + random() % (at.ids_end - at.log_probs)];
      const bool is_count =
          &byte >= block.data() + at.counts && &byte < block.data() + at.sampled_ids;
      if (!is_count)
        byte = static_cast<std::byte>(static_cast<int>(byte) + (random() % 2 ? 1 : -1));
      return;
    }
  }
}

// Sanitizers take ten times as long.
#ifdef SIS_FEW_SIMD_TARGETS
constexpr int kDamagedBlocks = 12'000;
#else
constexpr int kDamagedBlocks = 120'000;
#endif

TEST_P(SimdBlockTest, JudgesDamagedBlocksAsOneByOne) {
  std::mt19937 random(3);
  int valid = 0, invalid = 0;
  for (uint32_t i = 0; valid + invalid < kDamagedBlocks; ++i) {
    Shape shape = RandomShape(random);
    if (i % 16 > 0) {
      shape.slots = std::min<size_t>(shape.slots, 25);
      shape.positions = std::min<size_t>(shape.positions, 17);
    }
    const RandomBlock packed = BlockOf(shape, i);
    const std::vector<std::byte> good = i % 4 == 0 ? WithWideIds(packed.view) : BytesOf(packed);
    const BlockHeader header = OpenBlock(good, /*checksums=*/true)->header;
    const BlockLayout at(header);
    for (int j = 0; j < 60; ++j) {
      std::vector<std::byte> block = good;
      for (uint32_t changes = j == 0 ? 0 : 1 + random() % 2; changes > 0; --changes) {
        Damage(random, at, header, block);
      }
      const auto view = OpenBlock(block, /*checksums=*/false);
      if (!view.ok()) continue;
      const absl::Status expected = CheckPositions(*view);
      const bool found = PositionsAreQuicklySeenValid(*view);
      if (!found && block.size() - at.multipliers < 64) continue;  // too short for vectors
      ASSERT_EQ(found, expected.ok()) << expected << " K " << shape.slots;
      ++(expected.ok() ? valid : invalid);
    }
  }
  EXPECT_GT(valid, kDamagedBlocks / 12);
  EXPECT_GT(invalid, kDamagedBlocks / 12);
}

// Sums of probabilities around the most that is allowed, in many small parts.
TEST_P(SimdBlockTest, JudgesMassesAsOneByOne) {
  std::mt19937 random(4);
  int valid = 0, invalid = 0;
  for (int i = 0; i < 3000; ++i) {
    const size_t slots = i % 8 == 0 ? 254 : 2 + random() % 20;
    Records records{slots, {}, {}, {}, {}};
    const auto sum = static_cast<float>(i % 2 == 0 ? 1.0 : 0.99);
    for (size_t p = 0; p < 17; ++p) {
      for (size_t slot = 0; slot < slots; ++slot) {
        records.ids.push_back(static_cast<int32_t>(slot));
        records.log_probs.push_back(std::log(sum / static_cast<float>(slots)));
      }
      records.sampled_ids.push_back(999);
      records.sampled_log_probs.push_back(-9);
    }
    RandomBlock packed(
        records, {.encoding = static_cast<BlockEncoding>(random() % 2), .vocabulary_size = 1000});
    std::vector<std::byte> block = BytesOf(packed);
    // One position gets a mass near 1 + 1/64.
    const double target = 1.015625 + (static_cast<double>(random() % 2001) - 1000) * 1e-6;
    const auto log_prob = static_cast<float>(std::log(target / static_cast<double>(slots)));
    std::byte* const at = block.data() + BlockLayout(packed.view.header).log_probs;
    for (size_t slot = 3 * slots; slot < 4 * slots; ++slot) {
      if (packed.view.header.fixed()) {
        const auto code =
            static_cast<uint16_t>(Code16(Depth16(log_prob), packed.view.multipliers[3]));
        std::memcpy(at + slot * sizeof code, &code, sizeof code);
      } else {
        std::memcpy(at + slot * sizeof log_prob, &log_prob, sizeof log_prob);
      }
    }
    const BlockView view = *OpenBlock(block, /*checksums=*/false);
    const bool expected = CheckPositions(view).ok();
    ASSERT_EQ(PositionsAreQuicklySeenValid(view), expected) << target << " " << slots;
    ++(expected ? valid : invalid);
  }
  EXPECT_GT(valid, 500);
  EXPECT_GT(invalid, 500);
}

}  // namespace
}  // namespace sis
