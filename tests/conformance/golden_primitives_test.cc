// What every backend is made of, against the golden vectors.
#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/numerics/crc32c.h"
#include "kernels/numerics/exp32.h"
#include "kernels/numerics/log_prob.h"
#include "kernels/numerics/philox.h"
#include "kernels/numerics/sequence_key.h"
#include "kernels/records/mass_cut.h"
#include "kernels/records/rank_span.h"
#include "kernels/records/record_digest.h"
#include "kernels/records/validate.h"
#include "tests/conformance/golden_reader.h"

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

struct Record {
  int32_t sampled_id;
  float sampled_log_prob;
  std::vector<int32_t> ids;
  std::vector<float> log_probs;
};

Record ReadRecord(GoldenReader& golden, size_t slots) {
  Record record = {golden.Int32(), golden.Float(), std::vector<int32_t>(slots),
                   std::vector<float>(slots)};
  for (int32_t& id : record.ids) id = golden.Int32();
  for (float& log_prob : record.log_probs) log_prob = golden.Float();
  return record;
}

TEST(GoldenPrimitivesTest, RecordDigest) {
  GoldenReader golden("digest.txt");
  int entries = 0;
  for (; !golden.AtEnd(); ++entries) {
    const uint32_t first_position = golden.Uint32();
    const size_t slots = golden.Uint8();
    const uint32_t n = golden.Uint32();
    uint64_t digest = 0;
    for (uint32_t i = 0; i < n; ++i) {
      auto [sampled_id, sampled_log_prob, ids, log_probs] = ReadRecord(golden, slots);
      digest += PositionDigest(first_position + i, sampled_id, sampled_log_prob, ids, log_probs);
    }
    ASSERT_EQ(digest, golden.Uint64()) << "entry " << entries;
  }
  EXPECT_GT(entries, 10);
}

TEST(GoldenPrimitivesTest, MassCut) {
  GoldenReader golden("mass_cut.txt");
  int entries = 0;
  for (; !golden.AtEnd(); ++entries) {
    const auto mass = std::bit_cast<double>(golden.Uint64());
    const size_t slots = golden.Uint8();
    const uint32_t n = golden.Uint32();
    for (uint32_t i = 0; i < n; ++i) {
      auto [sampled_id, sampled_log_prob, ids, log_probs] = ReadRecord(golden, slots);
      uint16_t rank;
      const absl::Status valid =
          ValidateRecords({{&sampled_id, 1}, {&sampled_log_prob, 1}, ids, log_probs},
                          static_cast<int>(slots), 1 << 24, i, {&rank, 1});
      ASSERT_TRUE(valid.ok()) << valid;
      const std::vector<int32_t> ids_before = ids;
      const std::vector<float> log_probs_before = log_probs;
      CutToMass(mass, slots, ids, log_probs, {&rank, 1});
      const uint16_t used = golden.Uint8();
      for (size_t slot = 0; slot < slots; ++slot) {
        ASSERT_EQ(ids[slot], slot < used ? ids_before[slot] : -1) << mass;
        ASSERT_EQ(log_probs[slot], slot < used ? log_probs_before[slot] : kMinusInfinity) << mass;
      }
      ASSERT_EQ(rank, RankOfByte(golden.Uint8())) << mass;
    }
  }
  EXPECT_GT(entries, 40);
}

}  // namespace
}  // namespace sis
