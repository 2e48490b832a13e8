// Laws of blocks on random records: merging, damage, refusals.
#include "kernels/block/block.h"

#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/block/check.h"
#include "kernels/block/digest.h"
#include "kernels/block/pack.h"
#include "kernels/testing/packed_again.h"
#include "kernels/testing/random_blocks.h"

namespace sis {
namespace {

using testing::HasSubstr;
using Bytes = std::vector<std::byte>;

constexpr BlockEncoding kEncodings[] = {BlockEncoding::kFloat32, BlockEncoding::kFixed16};

struct Example {
  Records records;
  PackOptions options;

  Bytes Pack(size_t first, size_t count) const {
    PackOptions part = options;
    part.first_position += static_cast<uint32_t>(first);
    auto block = PackBlock(records.view(first, count), part);
    EXPECT_TRUE(block.ok()) << block.status();
    return *std::move(block);
  }
};

Example RandomExample(BlockEncoding encoding, int slots, int32_t vocabulary_size,
                      uint32_t positions, double mass, uint32_t seed) {
  return {RandomRecords(static_cast<size_t>(slots), vocabulary_size, positions, seed),
          {.encoding = encoding,
           .slots = slots,
           .vocabulary_size = vocabulary_size,
           .first_position = 5,
           .policy_version = seed,
           .mass = mass}};
}

BlockView Open(const Bytes& block) {
  auto view = OpenBlock(block, /*checksums=*/true);
  EXPECT_TRUE(view.ok()) << view.status();
  return *view;
}

TEST(BlockTest, MergedIsPackedAtOnceAndChecked) {
  uint32_t seed = 0;
  for (const BlockEncoding encoding : kEncodings) {
    for (const auto& [slots, vocabulary_size] : {std::pair(1, 50), {10, 65536}, {254, 70000}}) {
      for (const double mass : {0.0, 0.9}) {
        const Example example = RandomExample(encoding, slots, vocabulary_size, 40, mass, ++seed);
        const Bytes whole = example.Pack(0, 40);
        const auto checked = CheckBlock(whole);
        ASSERT_TRUE(checked.ok()) << checked.status();
        for (const size_t cut : {1, 16, 38}) {
          const Bytes first = example.Pack(0, cut), second = example.Pack(cut, 39 - cut),
                      third = example.Pack(39, 1);
          BlockView parts[] = {Open(first), Open(second), Open(third)};
          Bytes merged;
          const auto allocate = [&](size_t bytes) { return (merged = Bytes(bytes)).data(); };
          ASSERT_TRUE(MergeBlocks(parts, allocate).ok());
          ASSERT_EQ(merged, whole);
          std::swap(parts[1], parts[2]);
          EXPECT_EQ(MergeBlocks(parts, allocate).code(), absl::StatusCode::kInvalidArgument);
        }
      }
    }
  }
}

// A slice is the block of its positions, and no cut changes digests.
TEST(BlockTest, SlicesArePackedAloneAndDigestsAddUp) {
  uint32_t seed = 10;
  for (const BlockEncoding encoding : kEncodings) {
    for (const double mass : {0.0, 0.9}) {
      const Example example = RandomExample(encoding, 7, 70000, 40, mass, ++seed);
      const Bytes bytes = example.Pack(0, 40);
      const BlockView whole = Open(bytes);
      for (const auto& [first, count] : {std::pair(0u, 40u), {0, 1}, {3, 16}, {39, 1}}) {
        const Bytes slice = SliceBlock(whole, first, count);
        ASSERT_EQ(slice, example.Pack(first, count));
        EXPECT_EQ(DigestOf(Open(slice), 0, count), DigestOf(whole, first, count));
        EXPECT_EQ(DigestOf(whole, 0, first) + DigestOf(whole, first, count) +
                      DigestOf(whole, first + count, 40 - first - count),
                  DigestOf(whole, 0, 40));
      }
    }
  }
}

TEST(BlockTest, EveryByteOfAPositionCountsInItsDigest) {
  for (const BlockEncoding encoding : kEncodings) {
    Bytes block = RandomExample(encoding, 3, 50, 5, 0, 1).Pack(0, 5);
    const BlockView view = Open(block);
    const BlockLayout at(view.header);
    const uint64_t before = DigestOf(view, 0, 5);
    for (size_t byte = at.log_probs; byte < at.ids_end; ++byte) {
      const bool is_filling = byte >= at.ranks_end && byte < at.sampled_log_probs;
      if (is_filling || (byte >= at.counts && byte < at.sampled_ids)) continue;
      block[byte] ^= std::byte{1};
      EXPECT_NE(DigestOf(view, 0, 5), before) << "byte " << byte;
      block[byte] ^= std::byte{1};
    }
  }
}

TEST(BlockTest, EveryChangedBitIsFound) {
  for (const BlockEncoding encoding : kEncodings) {
    Bytes block = RandomExample(encoding, 3, 50, 5, 0, 1).Pack(0, 5);
    for (size_t bit = 0; bit < 8 * block.size(); ++bit) {
      block[bit / 8] ^= std::byte{1} << bit % 8;
      ASSERT_FALSE(CheckBlock(block).ok()) << "bit " << bit;
      block[bit / 8] ^= std::byte{1} << bit % 8;
    }
  }
}

// A client may therefore cut sets, and resend fetched blocks.
TEST(BlockTest, ACutBlockIsCutNoFurther) {
  for (const BlockEncoding encoding : kEncodings) {
    for (const int slots : {3, 20, 150}) {
      const Bytes block = RandomExample(encoding, slots, 1000, 300, 0.9, 4).Pack(0, 300);
      int compared = 0;
      for (uint32_t i = 0; i < 300; ++i) {
        const Bytes position = SliceBlock(Open(block), i, 1);
        const auto again = PackedAgain(Open(position), 0.9);
        if (!again) continue;
        ASSERT_EQ(*again, position);
        ++compared;
      }
      EXPECT_GT(compared, 200);
    }
  }
}

// A filter separates most pairs of ids before they are compared. A writer doesn't look for
// duplicates.
TEST(BlockTest, ADuplicateOfAnyIdAtAnyDistanceIsRefused) {
  constexpr int32_t kIds = 100;
  for (int32_t twice = 0; twice < kIds; ++twice) {
    Records records{kIds + 1, {0}, {-5.0f}, {}, {}};
    for (int32_t id = 0; id <= kIds; ++id) {
      records.ids.push_back(id < kIds ? id : twice);
      records.log_probs.push_back(-5.0f - 0.01f * static_cast<float>(id));
    }
    if (twice == 0) records.sampled_ids[0] = kIds + 1;
    const auto block = PackBlock(records.view(), {.slots = kIds + 1, .vocabulary_size = kIds + 2});
    ASSERT_TRUE(block.ok()) << block.status();
    EXPECT_THAT(std::string(CheckBlock(*block).status().message()),
                HasSubstr(absl::StrCat("slot 100: id ", twice, " stands twice")));
  }
}

TEST(BlockTest, RefusalsNameFieldPositionAndValue) {
  const Example example = RandomExample(BlockEncoding::kFixed16, 4, 50, 3, 0, 2);
  const Bytes good = example.Pack(0, 3);
  struct Case {
    size_t offset;
    uint8_t value;
    std::string message;
  };
  const BlockLayout at(Open(good).header);
  for (const Case& c : {Case{12, 2, "block, version: 2 must be 1"},
                        {13, 2, "block, encoding: 2"},
                        {14, 1, "block, id_bytes: 1"},
                        {15, 0, "block, slots: 0"},
                        {25, 17, "block, positions: 43"},
                        {63, 1, "last 24 bytes"},
                        {at.multipliers, 0, "multipliers at position 5: 0"},
                        {at.ranks, 9, "ranks at position 5: 9, must be"},
                        {at.sampled_ids, 50, "sampled_ids at position 5: 50 is not in [0, 50)"},
                        {at.counts, 5, "counts at position 5: 5 is above the 4 slots"},
                        {at.end - 1, 1, "the padding of a part is not 0"}}) {
    Bytes bad = good;
    bad[c.offset] = static_cast<std::byte>(c.value);
    // A header of another length can't be sealed.
    if (c.offset >= 64) SealBlock(bad);
    EXPECT_THAT(std::string(CheckBlock(bad).status().message()), HasSubstr(c.message));
  }
  for (const size_t size : {size_t{0}, size_t{63}, good.size() - 8}) {
    EXPECT_FALSE(CheckBlock(std::span(good).first(size)).ok());
  }
  Example wrong = example;
  wrong.records.sampled_ids[1] = 50;
  const auto refused = PackBlock(wrong.records.view(), wrong.options);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("sampled_ids at position 6"));
}

}  // namespace
}  // namespace sis
