#include "kernels/records/distinct_ids.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "gtest/gtest.h"

namespace sis {
namespace {

bool DifferInPairs(std::span<const int32_t> ids) {
  for (size_t i = 0; i < ids.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (ids[i] == ids[j] && ids[i] != -1) return false;
    }
  }
  return true;
}

TEST(DistinctIdsTest, AllSmallSetsOneAfterTheOther) {
  DistinctIds distinct;
  std::vector<int32_t> ids;
  for (int size = 0; size <= 5; ++size) {
    ids.assign(size, -1);
    while (true) {
      ASSERT_EQ(distinct.AllDiffer(ids), DifferInPairs(ids)) << testing::PrintToString(ids);
      const auto digit = std::ranges::find_if(ids, [](int32_t id) { return id < 4; });
      std::fill(ids.begin(), digit, -1);
      if (digit == ids.end()) break;
      ++*digit;
    }
  }
}

// Of 512 ids that differ about sixteen share a place with another.
TEST(DistinctIdsTest, LargeSetsSameAsComparedInPairs) {
  std::mt19937 random(20261125);
  DistinctIds distinct;
  int differ = 0;
  int repeated = 0;
  for (int i = 0; i < 5000; ++i) {
    const uint32_t range = i % 2 == 0 ? UINT32_MAX : 1 << (8 + random() % 16);
    std::vector<int32_t> ids(1 + random() % 512);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % range);
    if (random() % 4 == 0) ids[random() % ids.size()] = ids[random() % ids.size()];
    const bool expected = DifferInPairs(ids);
    ASSERT_EQ(distinct.AllDiffer(ids), expected) << testing::PrintToString(ids);
    ++(expected ? differ : repeated);
  }
  EXPECT_GT(differ, 1000);
  EXPECT_GT(repeated, 1000);
}

}  // namespace
}  // namespace sis
