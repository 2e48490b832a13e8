#include "server/cache/byte_budget.h"

#include <gtest/gtest.h>

#include <limits>

namespace sis {
namespace {

TEST(ByteBudgetTest, TakesAllOrNothing) {
  ByteBudget budget(100);
  EXPECT_TRUE(budget.TryCharge(60));
  EXPECT_FALSE(budget.TryCharge(41));
  EXPECT_EQ(budget.used(), 60);
  EXPECT_TRUE(budget.TryCharge(40));
  EXPECT_FALSE(budget.TryCharge(1));
  EXPECT_TRUE(budget.TryCharge(0));
  budget.Refund(100);
  EXPECT_EQ(budget.used(), 0);
}

TEST(ByteBudgetTest, LargeChargesDoNotOverflow) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  ByteBudget budget(kMax);
  EXPECT_TRUE(budget.TryCharge(kMax - 1));
  EXPECT_FALSE(budget.TryCharge(kMax));
  EXPECT_TRUE(budget.TryCharge(1));
  EXPECT_EQ(budget.used(), kMax);
}

TEST(ByteBudgetTest, ChargesTheParentToo) {
  ByteBudget server(100);
  ByteBudget a(80, &server);
  ByteBudget b(80, &server);
  EXPECT_TRUE(a.TryCharge(70));
  EXPECT_EQ(server.used(), 70);
  EXPECT_FALSE(a.TryCharge(20)) << "over its own limit";
  EXPECT_EQ(server.used(), 70);
  EXPECT_FALSE(b.TryCharge(40)) << "over the server's limit";
  EXPECT_EQ(b.used(), 0) << "nothing is taken where the parent refuses";
  EXPECT_TRUE(b.TryCharge(30));
  a.Refund(70);
  EXPECT_EQ(server.used(), 30);
  EXPECT_EQ(a.used(), 0);
  EXPECT_TRUE(b.TryCharge(50));
}

}  // namespace
}  // namespace sis
