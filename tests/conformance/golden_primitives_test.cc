// Tests the primitives of all backends against the golden vectors.
#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/numerics/crc32c.h"
#include "kernels/numerics/exp32.h"
#include "kernels/numerics/philox.h"
#include "kernels/numerics/sequence_key.h"
#include "tests/conformance/golden_reader.h"
#include "tests/conformance/positions.h"

namespace sis {
namespace {

TEST(GoldenPrimitivesTest, Exp32) {
  GoldenReader golden("exp32.txt");
  int entries = 0;
  for (; !golden.AtEnd(); ++entries) {
    const float x = golden.Float();
    const uint32_t expected = golden.Uint32();
    ASSERT_EQ(std::bit_cast<uint32_t>(Exp32(x)), expected) << "exp32(" << x << ")";
  }
  EXPECT_GT(entries, 1000);
}

TEST(GoldenPrimitivesTest, Philox) {
  GoldenReader golden("philox.txt");
  int entries = 0;
  for (; !golden.AtEnd(); ++entries) {
    const uint32_t key0 = golden.Uint32();
    const uint32_t key1 = golden.Uint32();
    PhiloxBlock counter;
    for (uint32_t& word : counter.word) word = golden.Uint32();
    const PhiloxBlock result = Philox4x32(counter, key0, key1);
    for (const uint32_t word : result.word) ASSERT_EQ(word, golden.Uint32()) << "entry " << entries;
  }
  EXPECT_GT(entries, 100);
}

TEST(GoldenPrimitivesTest, SequenceKey) {
  GoldenReader golden("sequence_key.txt");
  int entries = 0;
  for (; !golden.AtEnd(); ++entries) {
    const uint64_t seed = golden.Uint64();
    const uint32_t attempt = golden.Uint32();
    const std::string id = golden.Bytes();
    ASSERT_EQ(SequenceKey(seed, attempt, id), golden.Uint64()) << id;
  }
  EXPECT_GT(entries, 40);
}

TEST(GoldenPrimitivesTest, Crc32c) {
  GoldenReader golden("crc32c.txt");
  int entries = 0;
  for (; !golden.AtEnd(); ++entries) {
    const std::string message = golden.Bytes();
    const uint32_t expected = golden.Uint32();
    const auto bytes = std::as_bytes(std::span(message));
    ASSERT_EQ(ExtendCrc32c(0, bytes), expected) << "entry " << entries;
  }
  EXPECT_GT(entries, 50);
}

TEST(GoldenPrimitivesTest, MassCut) {
  GoldenReader golden("mass_cut.txt");
  int entries = 0;
  for (; !golden.AtEnd(); ++entries) {
    const auto mass = std::bit_cast<double>(golden.Uint64());
    Positions positions;
    positions.slots = golden.Uint8();
    const uint32_t n = golden.Uint32();
    std::vector<uint8_t> counts, ranks;
    for (uint32_t i = 0; i < n; ++i) {
      golden.Record(positions.slots, positions.sampled_ids, positions.behavior_sampled_log_probs,
                    positions.ids, positions.behavior_log_probs);
      counts.push_back(golden.Uint8());
      ranks.push_back(golden.Uint8());
    }
    const Packed packed(positions, 0, {BlockEncoding::kFloat32, mass});
    const BlockView& block = packed.blocks()[0];
    for (uint32_t i = 0; i < n; ++i) {
      ASSERT_EQ(block.counts[i], counts[i]) << mass;
      ASSERT_EQ(block.ranks[i], ranks[i]) << mass;
    }
  }
  EXPECT_GT(entries, 40);
}

}  // namespace
}  // namespace sis
