// Writes, checks and digests every golden block (tests/golden/generate.py).
#include <bit>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/block/check.h"
#include "kernels/block/digest.h"
#include "kernels/block/pack.h"
#include "tests/conformance/golden_reader.h"

namespace sis {
namespace {

std::vector<std::byte> AsBytes(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

TEST(GoldenBlocksTest, AreWrittenCheckedAndRead) {
  GoldenReader golden("blocks.txt");
  int entries = 0;
  for (; !golden.AtEnd(); ++entries) {
    SCOPED_TRACE(entries);
    PackOptions options;
    options.encoding = static_cast<BlockEncoding>(golden.Uint8());
    options.mass = std::bit_cast<double>(golden.Uint64());
    options.slots = golden.Uint8();
    options.vocabulary_size = golden.Int32();
    options.first_position = golden.Uint32();
    options.policy_version = golden.Uint64();
    const uint32_t positions = golden.Uint32();
    const auto slots = static_cast<size_t>(options.slots);
    std::vector<int32_t> sampled_ids, ids;
    std::vector<float> sampled_log_probs, log_probs;
    for (uint32_t i = 0; i < positions; ++i) {
      golden.Record(slots, sampled_ids, sampled_log_probs, ids, log_probs);
    }
    const std::vector<std::byte> expected = AsBytes(golden.Bytes());
    const auto block = PackBlock({sampled_ids, sampled_log_probs, ids, log_probs}, options);
    ASSERT_TRUE(block.ok()) << block.status();
    ASSERT_EQ(*block, expected);

    const auto view = CheckBlock(*block);
    ASSERT_TRUE(view.ok()) << view.status();
    EXPECT_EQ(DigestOf(*view, 0, positions), golden.Uint64());
  }
  EXPECT_GT(entries, 50);
}

}  // namespace
}  // namespace sis
