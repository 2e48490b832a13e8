#include "server/threads/worker_pool.h"

#include <gtest/gtest.h>

#include <latch>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace sis {
namespace {

// Schedules work while the only thread is busy. Returns the order in which it runs.
std::vector<std::string> OrderOf(const std::vector<std::string>& scheduled) {
  std::vector<std::string> order;
  std::latch busy(1);
  {
    WorkerPool pool(1);
    pool.Schedule("first", [&] { busy.wait(); });
    for (const std::string& run : scheduled) {
      pool.Schedule(run, [&, run] { order.push_back(run); });
    }
    busy.count_down();
  }
  return order;
}

TEST(WorkerPoolTest, NoRunStartsTwiceWhileAnotherWaits) {
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::string> scheduled;
    // One run floods the pool with units.
    for (int i = 0; i < 100; ++i) {
      scheduled.push_back(random() % 2 == 0 ? "flood" : std::string(1, 'a' + random() % 5));
    }
    std::map<std::string, int> left;
    for (const std::string& run : scheduled) ++left[run];
    std::map<std::string, int> started;  // since the run last had its turn
    for (const std::string& run : OrderOf(scheduled)) {
      started[run] = 0;
      --left[run];
      for (const auto& [other, count] : left) {
        if (other != run && count > 0) ++started[other];
      }
      for (const auto& [other, count] : started) {
        EXPECT_LT(count, static_cast<int>(left.size())) << other << " waits for more than a turn";
      }
    }
  }
}

}  // namespace
}  // namespace sis
