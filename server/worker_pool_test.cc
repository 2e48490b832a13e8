#include "server/worker_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <vector>

namespace sis {
namespace {

TEST(WorkerPoolTest, OneThreadKeepsTheOrder) {
  std::vector<int> order;
  {
    WorkerPool pool(1);
    for (int i = 0; i < 1000; ++i) pool.Schedule([&order, i] { order.push_back(i); });
  }
  ASSERT_EQ(order.size(), 1000);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[i], i);
}

TEST(WorkerPoolTest, ThreadsWorkSideBySide) {
  std::latch all_started(3);  // passed only if three run at once
  std::atomic<int> done = 0;
  {
    WorkerPool pool(3);
    for (int i = 0; i < 3; ++i) {
      pool.Schedule([&] {
        all_started.arrive_and_wait();
        ++done;
      });
    }
  }
  EXPECT_EQ(done, 3);
}

TEST(WorkerPoolTest, WorkMayScheduleWork) {
  std::atomic<int> done = 0;
  {
    WorkerPool pool(2);
    std::latch inner(1);
    pool.Schedule([&] {
      pool.Schedule([&] {
        ++done;
        inner.count_down();
      });
    });
    inner.wait();
  }
  EXPECT_EQ(done, 1);
}

TEST(WorkerPoolTest, TheDestructorRunsWhatIsScheduled) {
  std::atomic<int> done = 0;
  {
    WorkerPool pool(2);
    for (int i = 0; i < 500; ++i) pool.Schedule([&] { ++done; });
  }
  EXPECT_EQ(done, 500);
}

}  // namespace
}  // namespace sis
