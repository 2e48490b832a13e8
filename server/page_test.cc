#include "server/page.h"

#include <gtest/gtest.h>

#include <bit>

#include "kernels/record_digest.h"
#include "server/record_generator.h"

namespace sis {
namespace {

class PageTest : public testing::TestWithParam<int> {
 protected:
  uint64_t DigestOf(const Records& records, uint32_t row, uint32_t position) {
    const RecordView view = records.View(row, 1);
    return PositionDigest(position, view.sampled_ids[0], view.sampled_log_probs[0], view.ids,
                          view.log_probs);
  }

  const int slots_ = GetParam();
  RecordGenerator generator_{slots_, 1000, 1};
};

TEST_P(PageTest, RefundsWhatItCost) {
  ByteBudget budget(1 << 20);
  ASSERT_TRUE(budget.TryCharge(Page::Bytes(slots_)));
  {
    const Page page(slots_, budget);
    EXPECT_EQ(budget.used(), Page::Bytes(slots_));
  }
  EXPECT_EQ(budget.used(), 0);
}

TEST_P(PageTest, HoldsWhatWasStoredAtItsIndex) {
  ByteBudget budget(1 << 20);
  ASSERT_TRUE(budget.TryCharge(Page::Bytes(slots_)));
  Page page(slots_, budget);
  EXPECT_EQ(page.present(), 0);
  const Records records = generator_.NextRecords(Page::kPositions);
  uint64_t digest = 0;
  // In an order of its own: rows are independent.
  for (uint32_t i = 0; i < Page::kPositions; ++i) {
    const uint32_t index = i * 37 % Page::kPositions;
    page.Store(index, 640 + index, records.View(), index, records.ranks[index]);
    EXPECT_EQ(std::popcount(page.present()), i + 1);
    EXPECT_TRUE(page.present() >> index & 1);
    digest += DigestOf(records, index, 640 + index);
    EXPECT_EQ(page.digest(), digest);
  }
  const RecordView stored = page.Records(0, Page::kPositions);
  EXPECT_TRUE(std::ranges::equal(stored.sampled_ids, records.sampled_ids));
  EXPECT_TRUE(std::ranges::equal(stored.sampled_log_probs, records.sampled_log_probs));
  EXPECT_TRUE(std::ranges::equal(stored.ids, records.ids));
  EXPECT_TRUE(std::ranges::equal(stored.log_probs, records.log_probs));
  const BehaviorView behavior = page.Behavior(5, 7);
  EXPECT_TRUE(std::ranges::equal(behavior.sampled_ranks, std::span(records.ranks).subspan(5, 7)));
  EXPECT_TRUE(std::ranges::equal(behavior.log_probs, records.View(5, 7).log_probs));
  EXPECT_TRUE(std::ranges::equal(behavior.sampled_log_probs, records.View(5, 7).sampled_log_probs));
}

TEST_P(PageTest, EqualMeansBitByBit) {
  ByteBudget budget(1 << 20);
  ASSERT_TRUE(budget.TryCharge(Page::Bytes(slots_)));
  Page page(slots_, budget);
  const Records records = generator_.NextRecords(2);
  page.Store(9, 9, records.View(), 1, records.ranks[1]);
  EXPECT_TRUE(page.Equals(9, records.View(), 1));

  const auto differs = [&](auto change) {
    Records changed = records;
    change(changed);
    return !page.Equals(9, changed.View(), 1);
  };
  EXPECT_TRUE(differs([](Records& r) { ++r.sampled_ids[1]; }));
  EXPECT_TRUE(differs([](Records& r) { r.sampled_log_probs[1] *= 1.0000002f; }));
  EXPECT_TRUE(differs([](Records& r) { ++r.ids.back(); }));
  EXPECT_TRUE(differs([&](Records& r) { r.log_probs[slots_] = -100; }));
  EXPECT_FALSE(differs([](Records& r) { ++r.sampled_ids[0]; }));

  Records zero = records;
  zero.sampled_log_probs[1] = 0.0f;
  page.Erase(9, 9);
  page.Store(9, 9, zero.View(), 1, kRankOutside);
  zero.sampled_log_probs[1] = -0.0f;
  EXPECT_FALSE(page.Equals(9, zero.View(), 1));
}

TEST_P(PageTest, EraseUndoesStore) {
  ByteBudget budget(1 << 20);
  ASSERT_TRUE(budget.TryCharge(Page::Bytes(slots_)));
  Page page(slots_, budget);
  const Records records = generator_.NextRecords(2);
  page.Store(3, 67, records.View(), 0, records.ranks[0]);
  const uint64_t digest = page.digest();
  page.Store(4, 68, records.View(), 1, records.ranks[1]);
  EXPECT_EQ(page.PositionDigestAt(4, 68), DigestOf(records, 1, 68));
  page.Erase(4, 68);
  page.Erase(4, 68);
  page.Erase(60, 124);
  EXPECT_EQ(page.present(), uint64_t{1} << 3);
  EXPECT_EQ(page.digest(), digest);
  page.Erase(3, 67);
  EXPECT_EQ(page.present(), 0);
  EXPECT_EQ(page.digest(), 0);
}

INSTANTIATE_TEST_SUITE_P(Slots, PageTest, testing::Values(1, 5, 254));

}  // namespace
}  // namespace sis
