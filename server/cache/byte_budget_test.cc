#include "server/cache/byte_budget.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <thread>
#include <vector>

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

TEST(ByteBudgetTest, ThreadsTogetherNeverExceedALimit) {
  ByteBudget server(1000);
  ByteBudget a(700, &server);
  ByteBudget b(700, &server);
  std::atomic<bool> exceeded = false;
  const auto work = [&](ByteBudget& budget) {
    for (int i = 0; i < 20000; ++i) {
      const int64_t bytes = 1 + i % 300;
      if (!budget.TryCharge(bytes)) continue;
      if (server.used() > 1000 || budget.used() > 700) exceeded = true;
      budget.Refund(bytes);
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(work, std::ref(i % 2 == 0 ? a : b));
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(exceeded);
  EXPECT_EQ(server.used(), 0);
  EXPECT_EQ(a.used(), 0);
  EXPECT_EQ(b.used(), 0);
}

}  // namespace
}  // namespace sis
