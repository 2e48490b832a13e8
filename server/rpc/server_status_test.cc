// GetServer's history while runs are created and deleted.
#include "server/rpc/server_status.h"

#include <gtest/gtest.h>

#include "server/testing/cache_fixture.h"

namespace sis {
namespace {

using Activity = v1::GetServerResponse::Activity;

class ServerStatusTest : public testing::Test {
 protected:
  Activity Now() { return *status_.Describe().history().rbegin(); }

  static void Count(sis::Run& run, int64_t accepted, int64_t missing) {
    Evaluated evaluated;
    evaluated.sums.accepted = accepted;
    evaluated.sums.missing = missing;
    run.counters().AddEvaluated(evaluated);
    run.counters().AddIngested(accepted, 3 * accepted, 10 * accepted);
  }

  Cache cache_;
  prometheus::Registry registry_;
  RpcMetrics metrics_{registry_};
  ServerStatus status_{cache_.registry, metrics_, [this] { return cache_.clock.Now(); }};
};

TEST_F(ServerStatusTest, ReportsItsIdentity) {
  EXPECT_FALSE(status_.Describe().ready());
  status_.SetIdentity({.version = "1.2.3", .backend = "cpu", .store = "memory"});
  status_.SetReady(true);
  const double started_at = absl::ToDoubleSeconds(cache_.clock.Now() - absl::UnixEpoch());
  cache_.clock.Advance(absl::Seconds(7));
  const v1::GetServerResponse response = status_.Describe();
  EXPECT_TRUE(response.ready());
  EXPECT_EQ(response.version(), "1.2.3");
  EXPECT_EQ(response.backend(), "cpu");
  EXPECT_EQ(response.store(), "memory");
  EXPECT_EQ(response.started_at(), started_at);
  EXPECT_EQ(response.cache_budget_bytes(), cache_.registry.budget().limit());
  ASSERT_EQ(response.history_size(), 1);
  EXPECT_EQ(response.history(0).at(), started_at + 7);
}

TEST_F(ServerStatusTest, CountsOverAllRunsAndForgetsNoneThatWent) {
  const std::shared_ptr<sis::Run> a = cache_.CreateRun("a", SmallConfig());
  const std::shared_ptr<sis::Run> b = cache_.CreateRun("b", SmallConfig());
  Count(*a, 5, 1);
  Count(*b, 7, 0);
  EXPECT_EQ(Now().evaluated_positions(), 13);
  EXPECT_EQ(Now().ingested_positions(), 12);
  EXPECT_EQ(Now().ingested_bytes(), 120);

  // A later incarnation continues the counts. A deleted run's counts stay, to the last one.
  const std::shared_ptr<sis::Run> later = cache_.CreateRun("a", SmallConfig(), 2);
  Count(*later, 2, 0);
  EXPECT_EQ(Now().evaluated_positions(), 15);
  Count(*b, 3, 0);
  ASSERT_TRUE(cache_.registry.Delete("b", 1));
  for (int look = 0; look < 3; ++look) EXPECT_EQ(Now().evaluated_positions(), 18);
  Count(*cache_.CreateRun("b", SmallConfig()), 1, 0);
  EXPECT_EQ(Now().evaluated_positions(), 19);
}

TEST_F(ServerStatusTest, CountsCallsAndFailedCalls) {
  metrics_.CountRpc("GetRun", absl::StatusCode::kOk, absl::ZeroDuration());
  metrics_.CountRpc("GetRun", absl::StatusCode::kNotFound, absl::ZeroDuration());
  metrics_.CountRpc("Evaluate", absl::StatusCode::kOk, absl::ZeroDuration());
  EXPECT_EQ(Now().rpcs(), 3);
  EXPECT_EQ(Now().failed_rpcs(), 1);
}

TEST_F(ServerStatusTest, KeepsTheLastSamplesAndEndsWithNow) {
  for (size_t sample = 0; sample < ServerStatus::kSamples + 40; ++sample) {
    status_.Sample();
    cache_.clock.Advance(absl::FromChrono(ServerStatus::kSamplePeriod));
  }
  const v1::GetServerResponse response = status_.Describe();
  ASSERT_EQ(response.history_size(), ServerStatus::kSamples);
  for (int i = 1; i < response.history_size(); ++i) {
    EXPECT_EQ(response.history(i).at() - response.history(i - 1).at(), 5);
  }
  EXPECT_EQ(absl::FromUnixSeconds(static_cast<int64_t>(response.history().rbegin()->at())),
            cache_.clock.Now());
}

}  // namespace
}  // namespace sis
