// An Evaluate on the worker pool lets other runs go first, and stops when cancelled.
#include "server/rpc/evaluate_task.h"

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "kernels/testing/scalar_backend.h"
#include "server/messages/step_message.h"
#include "server/testing/cache_fixture.h"
#include "server/testing/record_generator.h"

namespace sis {
namespace {

constexpr uint32_t kSlots = 128;
// Number of positions that fill a work unit.
constexpr uint32_t kPiecePositions = 8192;

// Returns a request of missing sequences: full work units, but fast.
v1::EvaluateRequest Request(const std::string& run_id, int slices, uint64_t draw = 1) {
  v1::EvaluateRequest request;
  request.mutable_run()->set_run_id(run_id);
  request.set_draw(draw);
  for (int i = 0; i < slices; ++i) {
    request.add_slices()->mutable_sequence()->set_id(std::to_string(i));
    request.mutable_slices(i)->set_length(kPiecePositions);
  }
  const std::string zeros(slices * kPiecePositions * sizeof(float), '\0');
  request.mutable_gathered()->set_sampled_log_probs(zeros);
  request.mutable_gathered()->set_counts(
      std::string(slices * kPiecePositions, static_cast<char>(kSlots)));
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    *request.mutable_gathered()->mutable_log_probs() += zeros;
  }
  return request;
}

struct Call {
  v1::EvaluateRequest request;
  v1::EvaluateResponse response = {};
};

using Done = std::function<void(const absl::Status&)>;

class EvaluateTaskTest : public testing::Test {
 protected:
  EvaluateTaskTest() {
    for (const char* id : {"a", "b", "c"}) cache_.CreateRun(id, SmallConfig(kSlots));
  }

  Resources With(WorkerPool& workers) {
    return {cache_.runs, backend_, workers, store_threads_,
            streams_,    metrics_, status_, [](auto&&...) { return Caller(); }};
  }

  // Calls `done` with the answer.
  void Start(
      WorkerPool& workers, Call& call, Done done,
      std::function<absl::Status()> proceed = [] { return absl::OkStatus(); }) {
    EvaluateTask::Start(With(workers), Caller(), call.request, call.response, std::move(proceed),
                        std::move(done));
  }
  // Waits for the answer.
  absl::Status Await(
      WorkerPool& workers, Call& call,
      std::function<absl::Status()> proceed = [] { return absl::OkStatus(); }) {
    std::latch done(1);
    absl::Status status;
    const auto finish = [&](const absl::Status& answer) {
      status = answer;
      done.count_down();
    };
    Start(workers, call, finish, std::move(proceed));
    done.wait();
    return status;
  }

  // Starts the tasks while the only worker is busy, and runs them. Returns the order of their ends.
  std::vector<std::string> OrderOf(const std::vector<std::pair<std::string, int>>& runs) {
    std::vector<std::string> order;
    std::latch busy(1);
    WorkerPool workers(1);
    workers.Schedule("first", [&] { busy.wait(); });
    std::latch all_done(runs.size());
    std::deque<Call> calls;
    for (const auto& [run, slices] : runs) {
      Call& call = calls.emplace_back(Call{Request(run, slices, draw_++)});
      Start(workers, call, [&, run = run](const absl::Status& status) {
        EXPECT_TRUE(status.ok()) << status;
        order.push_back(run);
        all_done.count_down();
      });
    }
    busy.count_down();
    all_done.wait();
    return order;
  }

  Cache cache_;
  const ScalarBackend backend_{};
  WorkerPool store_threads_{0};
  OpenStreams streams_{absl::Now};
  prometheus::Registry registry_;
  RpcMetrics metrics_{registry_};
  ServerStatus status_{cache_.registry, metrics_, [this] { return cache_.clock.Now(); }};
  uint64_t draw_ = 1;
};

TEST_F(EvaluateTaskTest, AShortCallWaitsForAtMostOneUnitOfALongOne) {
  EXPECT_EQ(OrderOf({{"a", 5}, {"b", 1}, {"c", 2}}), (std::vector<std::string>{"b", "c", "a"}));
}

TEST_F(EvaluateTaskTest, RunsTakeTurnsHoweverManyRequestsOneSends) {
  EXPECT_EQ(OrderOf({{"a", 1}, {"a", 1}, {"a", 1}, {"a", 1}, {"b", 1}, {"c", 1}}),
            (std::vector<std::string>{"a", "b", "c", "a", "a", "a"}));
}

TEST_F(EvaluateTaskTest, CancellationIsSeenBetweenSlicesAndCountsNothing) {
  for (const int stop_after : {0, 1, 3, 6}) {
    int asked = 0;
    Call call{Request("a", 7, /*draw=*/99)};
    WorkerPool workers(1);
    const absl::Status status = Await(workers, call, [&] {
      return asked++ == stop_after ? absl::CancelledError() : absl::OkStatus();
    });
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
    EXPECT_EQ(asked, stop_after + 1);
    EXPECT_FALSE((*cache_.registry.Find("a"))->steps().Find(99).has_value());
  }
}

TEST_F(EvaluateTaskTest, SequencesAreFreeWhenTheAnswerIsThere) {
  v1::RunConfig config = SmallConfig(kSlots);
  config.set_max_staleness(0);
  const auto run = cache_.CreateRun("stale", config);
  const Records records = RecordGenerator(kSlots, 1000, /*seed=*/1).NextRecords(1);
  // Either a response, or an error at the second slice, whose ratios are unavailable.
  for (const bool refused : {false, true}) {
    ASSERT_EQ(AppendBlock(cache_, *run, records.Block(refused ? "b" : "a", refused ? 1 : 0)).code(),
              0);
    Call call;
    v1::EvaluateRequest* const request = &call.request;
    request->mutable_run()->set_run_id("stale");
    request->add_outputs(v1::OUTPUT_RATIOS);
    request->add_slices()->mutable_sequence()->set_id(refused ? "b" : "a");
    request->mutable_slices(0)->set_length(1);
    if (refused) {
      request->add_slices()->mutable_sequence()->set_id("not there");
      request->mutable_slices(1)->set_length(1);
    }
    const std::string zeros(request->slices_size() * sizeof(float), '\0');
    request->mutable_reduced()->set_sampled_log_probs(zeros);
    request->mutable_reduced()->set_log_envelopes(zeros);
    request->mutable_reduced()->set_covered_masses(zeros);
    std::latch done(1);
    WorkerPool workers(1);
    Start(workers, call, [&](const absl::Status& status) {
      EXPECT_EQ(status.ok(), !refused) << status;
      EXPECT_EQ(*run->AdvanceVersion(refused ? 2 : 1), 1);
      done.count_down();
    });
    done.wait();
  }
}

// 32 sequences of 256 positions, K = 16: eight groups, with enough values for two workers.
class SharedEvaluateTest : public EvaluateTaskTest {
 protected:
  static constexpr int kSlots = 16;
  static constexpr int kSequences = 32;
  static constexpr uint32_t kLength = 256;

  SharedEvaluateTest() {
    RecordGenerator generator(kSlots, 1000, /*seed=*/5);
    for (const char* id : {"alone", "shared"}) cache_.CreateRun(id, SmallConfig(kSlots));
    for (int i = 0; i < kSequences; ++i) {
      const std::string id = std::to_string(i);
      const Records records = generator.NextRecords(kLength);
      for (const int32_t sampled : records.sampled_ids) {
        request_.mutable_sampled_ids()->push_back(static_cast<char>(sampled));
        request_.mutable_sampled_ids()->push_back(static_cast<char>(sampled >> 8));
      }
      const v1::Gathered current = generator.NextCurrent(records).Gathered(0, kLength);
      for (const char* run : {"alone", "shared"}) {
        EXPECT_EQ(AppendBlock(cache_, *Find(run), records.Block(id)).code(), 0);
      }
      v1::Slice& slice = *request_.add_slices();
      slice.mutable_sequence()->set_id(id);
      slice.set_length(kLength);
      *request_.mutable_gathered()->mutable_counts() += current.counts();
      *request_.mutable_gathered()->mutable_log_probs() += current.log_probs();
      *request_.mutable_gathered()->mutable_sampled_log_probs() += current.sampled_log_probs();
    }
    request_.add_outputs(v1::OUTPUT_DECISIONS);
    request_.add_outputs(v1::OUTPUT_ACCEPTANCE_PROBABILITIES);
    request_.add_prefix_curve(3);
  }

  std::shared_ptr<sis::Run> Find(const std::string& run_id) {
    return *cache_.registry.Find(run_id);
  }

  absl::StatusOr<std::string> Answer(WorkerPool& workers, const std::string& run_id) {
    Call call{request_};
    call.request.mutable_run()->set_run_id(run_id);
    const absl::Status status = Await(workers, call);
    if (!status.ok()) return status;
    return call.response.SerializeAsString();
  }

  v1::EvaluateRequest request_;
};

TEST_F(SharedEvaluateTest, SeveralWorkersAnswerAndCountAsOneDoes) {
  WorkerPool one(1), several(4);
  // Missing ranges keep their order.
  for (const int missing : {3, 9, 30}) {
    request_.mutable_slices(missing)->mutable_sequence()->set_id("none");
    request_.mutable_slices(missing)->mutable_sequence()->set_attempt(missing);
  }
  for (uint64_t draw = 1; draw <= 20; ++draw) {
    request_.set_draw(draw);
    const absl::StatusOr<std::string> alone = Answer(one, "alone");
    ASSERT_TRUE(alone.ok()) << alone.status();
    EXPECT_EQ(*Answer(several, "shared"), *alone);
    const auto step = [&](const char* run) {
      v1::GetStepResponse message = ToMessage(*Find(run)->steps().Find(draw));
      message.clear_begun_at();
      message.clear_ended_at();
      return message.SerializeAsString();
    };
    EXPECT_EQ(step("shared"), step("alone"));
  }
}

TEST_F(SharedEvaluateTest, TheFirstSliceThatIsWrongIsNamed) {
  WorkerPool several(4);
  for (int first = 0; first < kSequences; ++first) {
    const std::string sampled_ids = request_.sampled_ids();
    for (size_t i = first * kLength * 2; i < sampled_ids.size(); ++i) {
      request_.mutable_sampled_ids()->at(i) ^= 1;
    }
    request_.set_draw(first);
    const absl::Status status = Answer(several, "shared").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    const std::string named = ToString(SequenceName{std::to_string(first), 0});
    EXPECT_TRUE(absl::StrContains(status.message(), " at position 0 of " + named)) << status;
    EXPECT_FALSE(Find("shared")->steps().Find(first).has_value());
    request_.set_sampled_ids(sampled_ids);
  }
}

}  // namespace
}  // namespace sis
