// Writes, checks, digests and reads every golden block (tests/golden/generate.py).
#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/block/check.h"
#include "kernels/block/digest.h"
#include "kernels/block/pack.h"
#include "kernels/block/read.h"
#include "kernels/numerics/log_prob.h"
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
      sampled_ids.push_back(golden.Int32());
      sampled_log_probs.push_back(golden.Float());
      for (size_t slot = 0; slot < slots; ++slot) ids.push_back(golden.Int32());
      for (size_t slot = 0; slot < slots; ++slot) log_probs.push_back(golden.Float());
    }
    const std::vector<std::byte> expected = AsBytes(golden.Bytes());
    const auto block = PackBlock({sampled_ids, sampled_log_probs, ids, log_probs}, options);
    ASSERT_TRUE(block.ok()) << block.status();
    ASSERT_EQ(*block, expected);

    const auto view = CheckBlock(*block);
    ASSERT_TRUE(view.ok()) << view.status();
    EXPECT_EQ(DigestOf(*view, 0, positions), golden.Uint64());
    std::vector<int32_t> read_sampled(positions), read_ids(view->header.used_slots);
    std::vector<int32_t> id_rows(ids.size());
    std::vector<float> log_prob_rows(ids.size());
    ReadBlockIds(*view, read_sampled, read_ids);
    ReadBlockIdRows(*view, slots, id_rows);
    ReadBlockLogProbRows(*view, slots, log_prob_rows);
    EXPECT_EQ(read_sampled, sampled_ids);
    EXPECT_EQ(std::memcmp(view->sampled_log_probs, sampled_log_probs.data(), 4 * positions), 0);
    size_t used = 0;
    for (uint32_t i = 0; i < positions; ++i) {
      for (size_t slot = 0; slot < slots; ++slot) {
        const size_t place = i * slots + slot;
        if (slot >= view->counts[i]) {
          EXPECT_EQ(id_rows[place], -1);
          EXPECT_EQ(log_prob_rows[place], kMinusInfinity);
          continue;
        }
        EXPECT_EQ(id_rows[place], ids[place]);
        EXPECT_EQ(read_ids[used++], ids[place]);
        EXPECT_LE(log_prob_rows[place], log_probs[place]);
        const float step = view->header.fixed() ? view->multipliers[i] * 0x1p-18f : 0;
        EXPECT_GE(log_prob_rows[place], log_probs[place] - step);
      }
    }
  }
  EXPECT_GT(entries, 50);
}

}  // namespace
}  // namespace sis
