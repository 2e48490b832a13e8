#include "kernels/record_digest.h"

#include <cstdint>
#include <limits>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace sis {
namespace {

constexpr float kUnused = -std::numeric_limits<float>::infinity();

// Expected values from another implementation of docs/numerics.md, section 9 (Python integers).
TEST(RecordDigestTest, HasTheDocumentedValues) {
  EXPECT_EQ(PositionDigest(0, 7, -0.5f, std::vector<int32_t>{7, 3, -1},
                           std::vector<float>{-0.5f, -1.5f, kUnused}),
            0xab2afd8a5fd8c9b6);
  EXPECT_EQ(PositionDigest(0xfffffffe, 5, -9.25f, std::vector<int32_t>{7, 3, 11},
                           std::vector<float>{-0.5f, -1.5f, -2.0f}),
            0x4cb3af018548e578);
}

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

}  // namespace
}  // namespace sis
