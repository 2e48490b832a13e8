#include "server/threads/side_by_side.h"

#include <absl/time/time.h>
#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <vector>

#include "absl/time/clock.h"

namespace sis {
namespace {

TEST(SideBySideTest, IdleWorkersHelp) {
  WorkerPool workers(2);
  std::latch all_started(3);  // passed only if three threads work concurrently
  std::vector<int> called(3);
  SideBySide(workers, "run", 3, [&](size_t lane) {
    all_started.arrive_and_wait();
    ++called[lane];
  });
  EXPECT_EQ(called, std::vector<int>(3, 1));
}

TEST(SideBySideTest, BusyWorkersAreNeitherAwaitedNorJoinLater) {
  std::latch busy(1);
  std::vector<size_t> called;
  {
    WorkerPool workers(1);
    workers.Schedule("run", [&] { busy.wait(); });
    SideBySide(workers, "run", 4, [&](size_t lane) { called.push_back(lane); });
    busy.count_down();
  }
  EXPECT_EQ(called, std::vector<size_t>{0});
}

TEST(SideBySideTest, WorkersMayAskForHelp) {
  constexpr int kParts = 1000, kTimes = 50;
  std::atomic<int> done = 0;
  {
    WorkerPool workers(3);
    for (int time = 0; time < kTimes; ++time) {
      workers.Schedule("run", [&] {
        std::atomic<int> next = 0;
        SideBySide(workers, "run", 3, [&](size_t) {
          while (next++ < kParts) ++done;
        });
      });
    }
  }
  EXPECT_EQ(done, kParts * kTimes);
}

TEST(SideBySideTest, ReturnsWhenAllHaveReturned) {
  WorkerPool workers(1);
  std::latch helping(1);
  std::atomic<bool> helped = false;
  SideBySide(workers, "run", 2, [&](size_t lane) {
    if (lane == 0) return helping.wait();
    helping.count_down();
    absl::SleepFor(absl::Milliseconds(50));  // long after lane 0 has returned
    helped = true;
  });
  EXPECT_TRUE(helped);
}

}  // namespace
}  // namespace sis
