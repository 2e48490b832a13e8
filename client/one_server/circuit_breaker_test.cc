// The same laws as the Python client's circuit_breaker_test.py.
#include "client/one_server/circuit_breaker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace sis {
namespace {

using ::testing::HasSubstr;

class CircuitBreakerTest : public ::testing::Test {
 protected:
  absl::Status Call(
      CircuitBreaker::Ask ask = [] { return absl::OkStatus(); },
      CircuitBreaker::Ask probe = [] { return absl::OkStatus(); }) {
    return breaker_.Call(ask, [&] {
      ++probes_;
      return probe();
    });
  }

  void Fail(absl::Duration waited = absl::ZeroDuration(),
            absl::Status status = absl::UnavailableError("gone")) {
    EXPECT_EQ(Call([&] {
                now_ += waited;
                return status;
              }),
              status);
  }

  void ExpectLeftAlone() {
    const absl::Status status = Call([] {
      ADD_FAILURE() << "it was asked";
      return absl::OkStatus();
    });
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("left alone for a while, after"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("gone"));
  }

  absl::Time now_ = absl::UnixEpoch();
  CircuitBreaker breaker_{[this] { return now_; }};
  std::atomic<int> probes_ = 0;
};

TEST_F(CircuitBreakerTest, AReplicaThatAnswersIsAskedWhateverItSays) {
  const absl::Status error = absl::NotFoundError("no such run");
  EXPECT_EQ(Call([&] { return error; }), error);
  EXPECT_TRUE(Call().ok());
  EXPECT_EQ(probes_, 0);
}

TEST_F(CircuitBreakerTest, ItIsLeftAloneInProportionToWhatItCost) {
  const std::vector<std::pair<double, double>> waited_and_alone = {
      {0, 1}, {0.02, 1}, {0.5, 5}, {60, 10}};
  for (const auto& [waited, alone] : waited_and_alone) {
    for (const absl::Status& status :
         {absl::UnavailableError("gone"), absl::DeadlineExceededError("gone"),
          absl::CancelledError("gone")}) {
      Fail(absl::Seconds(waited), status);
      const absl::Time failed = now_;
      now_ = failed + absl::Seconds(0.99 * alone);
      ExpectLeftAlone();
      now_ = failed + absl::Seconds(1.01 * alone);
      EXPECT_TRUE(Call().ok());
    }
  }
  EXPECT_EQ(probes_, 12);
}

TEST_F(CircuitBreakerTest, OneCallProbesItAndTheOthersGoOnWithout) {
  Fail();
  now_ += absl::Seconds(2);
  EXPECT_TRUE(Call([] { return absl::OkStatus(); },
                   [&] {
                     for (int i = 0; i < 3; ++i) ExpectLeftAlone();
                     return absl::OkStatus();
                   })
                  .ok());
  EXPECT_TRUE(Call().ok());
  EXPECT_EQ(probes_, 1);
}

TEST_F(CircuitBreakerTest, AProbeWithoutAnAnswerLeavesItAloneAgain) {
  Fail();
  now_ += absl::Seconds(2);
  const absl::Status late = absl::DeadlineExceededError("gone");
  EXPECT_EQ(Call(
                [] {
                  ADD_FAILURE() << "it was asked";
                  return absl::OkStatus();
                },
                [&] {
                  now_ += absl::Seconds(0.7);
                  return late;
                }),
            late);
  now_ += absl::Seconds(6.9);
  ExpectLeftAlone();
  now_ += absl::Seconds(0.2);
  // Whatever it says, it is there.
  EXPECT_TRUE(
      Call([] { return absl::OkStatus(); }, [] { return absl::UnimplementedError(""); }).ok());
}

TEST_F(CircuitBreakerTest, ThreadsShareIt) {
  Fail();
  now_ += absl::Seconds(2);
  std::atomic<int> answers = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      if (Call().ok()) ++answers;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(probes_, 1);
  EXPECT_GE(answers, 1);
}

}  // namespace
}  // namespace sis
