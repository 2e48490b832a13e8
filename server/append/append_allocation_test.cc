// Engines append a token at a time: that must not allocate, but for a new page.
#include <gtest/gtest.h>

#include "server/cache/sequence.h"
#include "server/testing/allocations.h"
#include "server/testing/rounded_records.h"

namespace sis {
namespace {

TEST(AppendAllocationTest, ATokenInAPageAllocatesNothing) {
  for (const auto encoding :
       {LogProbEncoding::kFloat32, LogProbEncoding::kFloat16, LogProbEncoding::kFixed12}) {
    const RecordFormat format = {encoding, 20, 1000};
    const SentRecords records(format, Page::kPositions, 5);
    const std::unique_ptr<Arena> arena = *Arena::Map(4 << 20);
    ByteBudget budget(1 << 20);
    ASSERT_TRUE(budget.TryCharge(Sequence::kBaseBytes));
    Sequence sequence(format, 1, *arena, budget);
    const auto append = [&](uint32_t position) {
      return sequence
          .Append(position, 0, records.View(position, 1),
                  std::span(records.ranks).subspan(position, 1), nullptr)
          .ok();
    };
    ASSERT_TRUE(append(0));
    const int64_t before = allocations;
    bool ok = true;
    for (uint32_t position = 1; position < Page::kPositions - 1; ++position) {
      ok = ok && append(position) && append(position);  // sent again
    }
    EXPECT_TRUE(ok);
    EXPECT_EQ(allocations, before);
    ASSERT_TRUE(append(Page::kPositions - 1));  // packs the page
    EXPECT_GT(allocations, before) << "they aren't counted";
  }
}

}  // namespace
}  // namespace sis
