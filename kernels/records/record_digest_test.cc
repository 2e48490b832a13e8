#include "kernels/records/record_digest.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <span>
#include <vector>

#include "gtest/gtest.h"

namespace sis {
namespace {

constexpr float kUnused = -std::numeric_limits<float>::infinity();

TEST(RecordDigestTest, EveryPartMatters) {
  using Ids = std::vector<int32_t>;
  using LogProbs = std::vector<float>;
  const std::set<uint64_t> digests = {
      PositionDigest(0, 7, -0.5f, Ids{7, 3}, LogProbs{-0.5f, -1.5f}),
      PositionDigest(1, 7, -0.5f, Ids{7, 3}, LogProbs{-0.5f, -1.5f}),
      PositionDigest(0, 3, -0.5f, Ids{7, 3}, LogProbs{-0.5f, -1.5f}),
      PositionDigest(0, 7, -0.25f, Ids{7, 3}, LogProbs{-0.5f, -1.5f}),
      PositionDigest(0, 7, -0.5f, Ids{7, 4}, LogProbs{-0.5f, -1.5f}),
      PositionDigest(0, 7, -0.5f, Ids{7, 3}, LogProbs{-0.5f, -1.25f}),
      PositionDigest(0, 7, -0.5f, Ids{3, 7}, LogProbs{-0.5f, -1.5f}),
      PositionDigest(0, 7, -0.5f, Ids{7}, LogProbs{-0.5f}),
  };
  EXPECT_EQ(digests.size(), 8);
}

// Any number of rows of any number of slots, from a position that wraps around as well.
TEST(RecordDigestTest, OfRowsIsTheSumOverThem) {
  std::mt19937 random(20260108);
  for (const size_t slots : {1, 2, 3, 10, 11, 128}) {
    for (size_t count = 0; count < 12; ++count) {
      std::vector<int32_t> sampled_ids(count), ids(count * slots);
      std::vector<float> sampled_log_probs(count), log_probs(count * slots);
      for (int32_t& id : sampled_ids) id = static_cast<int32_t>(random());
      for (int32_t& id : ids) id = static_cast<int32_t>(random());
      for (float& x : sampled_log_probs) x = -static_cast<float>(random() % 1000) / 64;
      for (float& x : log_probs) x = -static_cast<float>(random() % 1000) / 64;
      const uint32_t first = slots == 3 ? 0xfffffffd : random() % 1000;
      uint64_t sum = 0;
      for (size_t i = 0; i < count; ++i) {
        sum += PositionDigest(static_cast<uint32_t>(first + i), sampled_ids[i],
                              sampled_log_probs[i], std::span(ids).subspan(i * slots, slots),
                              std::span(log_probs).subspan(i * slots, slots));
      }
      EXPECT_EQ(DigestOfRows(first, {sampled_ids, sampled_log_probs, ids, log_probs}), sum)
          << slots << " slots, " << count << " rows";
    }
  }
}

// Of counted rows, what stands behind the used slots means nothing.
TEST(RecordDigestTest, OfCountedRowsIsThatOfUnusedSlots) {
  std::mt19937 random(5);
  for (const size_t slots : {1, 2, 3, 4, 10, 11, 100, 511, 512}) {
    for (size_t count = 0; count < 8; ++count) {
      std::vector<int32_t> sampled_ids(count), ids(count * slots);
      std::vector<float> sampled_log_probs(count), log_probs(count * slots);
      for (int32_t& id : sampled_ids) id = static_cast<int32_t>(random());
      for (int32_t& id : ids) id = static_cast<int32_t>(random());
      for (float& x : sampled_log_probs) x = -static_cast<float>(random() % 1000) / 64;
      for (float& x : log_probs) x = -static_cast<float>(random() % 1000) / 64;
      std::vector<int32_t> padded_ids = ids;
      std::vector<float> padded_log_probs = log_probs;
      std::vector<uint16_t> counts(count);
      for (size_t i = 0; i < count; ++i) {
        counts[i] = static_cast<uint16_t>(i == 0 ? 0 : i == 1 ? slots : random() % (slots + 1));
        const size_t from = i * slots + counts[i];
        const size_t unused = slots - counts[i];
        std::ranges::fill(std::span(padded_ids).subspan(from, unused), -1);
        std::ranges::fill(std::span(padded_log_probs).subspan(from, unused), kUnused);
      }
      const RecordView counted = {sampled_ids, sampled_log_probs, ids, log_probs, counts};
      const uint64_t expected =
          DigestOfRows(900, {sampled_ids, sampled_log_probs, padded_ids, padded_log_probs});
      EXPECT_EQ(DigestOfRows(900, counted), expected) << slots << " slots, " << count << " rows";
      EXPECT_EQ(DigestOfPaddedRows(900, counted), expected) << slots << " slots";
    }
  }
}

}  // namespace
}  // namespace sis
