// Cutting, staging and the fallback. What a backend must compute is in tests/conformance, which
// runs over the same stages.
#include "kernels/cuda/evaluate/staged_backend.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/evaluate/self_check.h"
#include "kernels/cuda/testing/host_stage.h"
#include "kernels/cuda/testing/ragged_pages.h"
#include "kernels/decide/scalar_backend.h"
#include "tests/conformance/as_ragged.h"
#include "tests/conformance/policy_pairs.h"
#include "tests/conformance/positions.h"
#include "tests/conformance/with_fixed_rows.h"

namespace sis::cuda {
namespace {

std::unique_ptr<const StagedBackend> OnHost() {
  return BackendOnHostStages(std::make_unique<ScalarBackend>());
}

// The same 500 positions again and again: a call of many batches.
struct LongCall {
  static constexpr size_t kSegments = 60;

  explicit LongCall(uint32_t seed) {
    std::mt19937_64 random(seed);
    positions = RandomPositions(random, parameters.slots, 500);
    parameters.draw = random();
  }

  // Sums differ from stretch to stretch, and some share theirs.
  struct Output {
    std::vector<Results> results = std::vector<Results>(kSegments, Results(500));
    bool operator==(const Output& other) const {
      return std::ranges::equal(results, other.results, [](const Results& a, const Results& b) {
        return static_cast<bool>(SameBytes(a, b));
      });
    }
  };

  std::vector<Stretch> SegmentsInto(Output& output) const {
    std::vector<Stretch> stretches;
    for (size_t i = 0; i < kSegments; ++i) {
      stretches.push_back(StretchOf(positions, 0, positions.size(), i / 2,
                                    static_cast<uint32_t>(1000 * i), output.results[i]));
      if (i % 3 == 1) stretches.back().sums = &output.results[i - 1].sums;
    }
    return stretches;
  }

  Output EvaluateBy(const Backend& backend) const {
    Output output;
    backend.Evaluate(parameters, SegmentsInto(output));
    return output;
  }

  EvaluateParameters parameters{.slots = 50, .top_k = 43, .draw = 0, .total_variation = true};
  Positions positions;
};

// Fails as told; counts what is started.
class FailingStage final : public HostStage {
 public:
  struct Plan {
    int start_that_fails = -1;
    int finish_that_fails = -1;
    std::atomic<int> starts = 0;
    std::atomic<int> finishes = 0;
  };

  explicit FailingStage(Plan& plan) : plan_(plan) {}

  absl::Status Start(const Batch& batch) override {
    if (plan_.starts++ == plan_.start_that_fails) return absl::InternalError("start lost");
    return HostStage::Start(batch);
  }
  absl::Status Finish() override {
    if (plan_.finishes++ == plan_.finish_that_fails) return absl::InternalError("finish lost");
    return absl::OkStatus();
  }

 private:
  Plan& plan_;
};

std::unique_ptr<const StagedBackend> WithPlan(FailingStage::Plan& plan) {
  std::vector<StagePair> stages(1);
  for (auto& stage : stages[0]) stage = std::make_unique<FailingStage>(plan);
  return std::make_unique<StagedBackend>("cuda/failing", std::move(stages),
                                         std::make_unique<ScalarBackend>());
}

TEST(StagedBackend, CutsLongCallsIntoBatches) {
  const LongCall call(1);
  FailingStage::Plan plan;
  EXPECT_TRUE(call.EvaluateBy(*WithPlan(plan)) == call.EvaluateBy(ScalarBackend()));
  EXPECT_GE(plan.starts, 3);
  EXPECT_EQ(plan.starts, plan.finishes);
}

// The longest rows there are, and a stretch that is many pieces.
TEST(StagedBackend, CutsLongSegmentsIntoPieces) {
  std::mt19937_64 random(2);
  const Positions positions = RandomPositions(random, kMaxTopK, 5000);
  const EvaluateParameters parameters{.slots = kMaxTopK, .top_k = kMaxTopK, .draw = 3};
  EXPECT_TRUE(SameBytes(sis::Evaluate(*OnHost(), parameters, 4, 5, positions),
                        sis::Evaluate(ScalarBackend(), parameters, 4, 5, positions)));
}

// Ragged ones, with another current value at each slot.
TEST(StagedBackend, CutsLongRaggedSegmentsIntoPieces) {
  std::mt19937_64 random(9);
  Positions positions = PositionsCutToMass(random, 64, 5000);
  for (float& value : positions.current_log_probs) {
    value = -4 - static_cast<float>(random() % 1024) / 64;
  }
  const EvaluateParameters parameters{.slots = 64, .top_k = 20, .draw = 3, .total_variation = true};
  const Results expected = sis::Evaluate(ScalarBackend(), parameters, 4, 5, positions);
  ASSERT_EQ(expected.sums.invalid, 0);
  const auto backend = OnHost();
  for (const Ragged what : {Ragged::kRecords, Ragged::kRecordsAndValues}) {
    const AsRagged ragged(*backend, what);
    EXPECT_TRUE(SameBytes(sis::Evaluate(ragged, parameters, 4, 5, positions), expected));
  }
}

// Nothing is staged of the slots that ragged rows leave out: K doesn't matter to them.
TEST(Batch, UnusedSlotsOfRaggedRowsTakeNoRoom) {
  std::mt19937_64 random(10);
  Positions few = RandomPositions(random, 10, 500);
  Positions many = few;
  many.slots = kMaxTopK;
  many.behavior_log_probs.assign(500 * kMaxTopK, kMinusInfinity);
  many.current_log_probs.assign(500 * kMaxTopK, kMinusInfinity);
  for (size_t i = 0; i < 500; ++i) {
    std::copy_n(&few.behavior_log_probs[10 * i], 10, &many.behavior_log_probs[kMaxTopK * i]);
    std::copy_n(&few.current_log_probs[10 * i], 10, &many.current_log_probs[kMaxTopK * i]);
  }
  std::vector<size_t> bytes;
  for (const Positions* positions : {&few, &many}) {
    Results results(500);
    Stretch stretch = StretchOf(*positions, 0, 500, 1, 7, results);
    const RaggedBehavior ragged(stretch.behavior, static_cast<size_t>(positions->slots), 7);
    stretch.behavior = ragged.view();
    Batch batch(kStagedInputBytes, kStagedOutputBytes);
    batch.Reset({.slots = positions->slots, .top_k = positions->slots, .draw = 1});
    ASSERT_EQ(batch.Take(stretch, 0), 500u);
    bytes.push_back(batch.input_bytes());
  }
  EXPECT_EQ(bytes[0], bytes[1]);
}

TEST(StagedBackend, ManyThreads) {
  const LongCall call(3);
  const LongCall::Output expected = call.EvaluateBy(ScalarBackend());
  const auto backend = OnHost();
  std::atomic<int> equal = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 5; ++i) {
    threads.emplace_back([&] { equal += call.EvaluateBy(*backend) == expected; });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(equal, 5);
}

TEST(StagedBackend, WhateverFailsTheAnswerIsTheSame) {
  const LongCall call(4);
  const LongCall::Output expected = call.EvaluateBy(ScalarBackend());
  for (const bool in_start : {true, false}) {
    for (const int number : {0, 1, 2}) {
      FailingStage::Plan plan;
      (in_start ? plan.start_that_fails : plan.finish_that_fails) = number;
      const auto backend = WithPlan(plan);

      testing::internal::CaptureStderr();
      EXPECT_TRUE(call.EvaluateBy(*backend) == expected) << in_start << " " << number;
      EXPECT_EQ(testing::internal::GetCapturedStderr(),
                std::string("backend: cuda/failing failed, from now on scalar (") +
                    (in_start ? "start" : "finish") + " lost)\n");

      // And from then on, without another word.
      const int starts = plan.starts;
      testing::internal::CaptureStderr();
      EXPECT_TRUE(call.EvaluateBy(*backend) == expected);
      EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
      EXPECT_EQ(plan.starts, starts);
    }
  }
}

// A call of pages whose rows stay: longer than a batch.
struct FixedCall : LongCall {
  explicit FixedCall(uint32_t seed) : LongCall(seed) {
    for (size_t first = 0; first < 500; first += 50) {
      BehaviorView part = positions.behavior();
      part.log_probs = part.log_probs.subspan(first * 50, 50 * 50);
      part.sampled_log_probs = part.sampled_log_probs.subspan(first, 50);
      part.sampled_ranks = part.sampled_ranks.subspan(first, 50);
      pages.emplace_back(part);
    }
  }

  std::vector<Stretch> SegmentsInto(Output& output) const {
    std::vector<Stretch> stretches;
    for (size_t i = 0; i < kSegments * 10; ++i) {
      const size_t page = i % 10;
      stretches.push_back(StretchOf(positions, page * 50, 50, i / 20,
                                    static_cast<uint32_t>(100 * i), output.results[i / 10]));
      stretches.back().behavior = pages[page].view();
    }
    return stretches;
  }
  Output EvaluateBy(const Backend& backend) const {
    Output output;
    backend.Evaluate(parameters, SegmentsInto(output));
    return output;
  }

  std::deque<FixedBehavior> pages;
};

constexpr size_t kSlabBytes = size_t{32} << 10;  // three pages

class FailingStageWithMemory final : public HostStageWithMemory {
 public:
  FailingStageWithMemory(FailingStage::Plan& plan, HostResidentMemory& memory)
      : HostStageWithMemory(memory, When::kLate), plan_(plan) {}

  absl::Status Start(const Batch& batch) override {
    // Before anything is uploaded.
    if (plan_.starts++ == plan_.start_that_fails) return absl::InternalError("start lost");
    return HostStageWithMemory::Start(batch);
  }
  absl::Status Finish() override {
    absl::Status status = HostStageWithMemory::Finish();
    if (plan_.finishes++ == plan_.finish_that_fails) return absl::InternalError("finish lost");
    return status;
  }

 private:
  FailingStage::Plan& plan_;
};

std::unique_ptr<const StagedBackend> WithPlanAndMemory(FailingStage::Plan& plan, size_t chunks) {
  auto memory = std::make_unique<HostResidentMemory>(chunks * kSlabBytes);
  std::vector<StagePair> stages(1);
  for (auto& stage : stages[0]) stage = std::make_unique<FailingStageWithMemory>(plan, *memory);
  return std::make_unique<StagedBackend>("cuda/failing", std::move(stages),
                                         std::make_unique<ScalarBackend>(), std::move(memory),
                                         kSlabBytes);
}

TEST(StagedBackend, RowsThatStayAreSentOnce) {
  const FixedCall call(6);
  const LongCall::Output expected = call.EvaluateBy(ScalarBackend());
  FailingStage::Plan plan;
  const auto backend = WithPlanAndMemory(plan, 4);
  EXPECT_TRUE(call.EvaluateBy(*backend) == expected);
  EXPECT_EQ(backend->resident_blocks().copies, 10);
  const int64_t passes = backend->resident_blocks().passes;
  EXPECT_TRUE(call.EvaluateBy(*backend) == expected);
  EXPECT_EQ(backend->resident_blocks().copies, 10);
  EXPECT_EQ(backend->resident_blocks().passes, passes);
  EXPECT_GT(plan.starts, 4);

  // Far less room than the call wants at a time.
  const auto thrashing = WithPlanAndMemory(plan, 2);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(call.EvaluateBy(*thrashing) == expected);
  EXPECT_GT(thrashing->resident_blocks().passes, 10);
}

// Rows that are not where the tag says are read where they are.
TEST(StagedBackend, RowsElsewhereAreStaged) {
  const FixedCall call(8);
  FailingStage::Plan plan;
  const auto backend = WithPlanAndMemory(plan, 4);
  LongCall::Output output;
  std::vector<Stretch> stretches = call.SegmentsInto(output);
  for (Stretch& stretch : stretches) {
    stretch.behavior.sampled_ranks = call.positions.behavior().sampled_ranks.subspan(0, 50);
  }
  backend->Evaluate(call.parameters, stretches);
  LongCall::Output expected;
  std::vector<Stretch> plain = call.SegmentsInto(expected);
  for (Stretch& stretch : plain) {
    stretch.behavior.sampled_ranks = call.positions.behavior().sampled_ranks.subspan(0, 50);
  }
  ScalarBackend().Evaluate(call.parameters, plain);
  EXPECT_TRUE(output == expected);
  EXPECT_EQ(backend->resident_blocks().copies, 0);
}

TEST(StagedBackend, WhateverFailsWithRowsThatStayTheAnswerIsTheSame) {
  const FixedCall call(7);
  const LongCall::Output expected = call.EvaluateBy(ScalarBackend());
  for (const bool in_start : {true, false}) {
    for (const int number : {0, 1, 2}) {
      FailingStage::Plan plan;
      (in_start ? plan.start_that_fails : plan.finish_that_fails) = number;
      const auto backend = WithPlanAndMemory(plan, 4);
      testing::internal::CaptureStderr();
      EXPECT_TRUE(call.EvaluateBy(*backend) == expected) << in_start << " " << number;
      EXPECT_NE(testing::internal::GetCapturedStderr(), "");
      EXPECT_TRUE(call.EvaluateBy(*backend) == expected);
      // Another call may be past the test for failure: what the failed one wrote is not its.
      LongCall::Output output;
      EXPECT_TRUE(backend->TryEvaluate(call.parameters, call.SegmentsInto(output)).ok());
      EXPECT_TRUE(output == expected);
    }
  }
}

TEST(StagedBackend, AFailureLeavesSumsAlone) {
  const LongCall call(5);
  FailingStage::Plan plan;
  plan.finish_that_fails = 2;
  const auto backend = WithPlan(plan);
  LongCall::Output output;
  EXPECT_FALSE(backend->TryEvaluate(call.parameters, call.SegmentsInto(output)).ok());
  for (const Results& results : output.results) EXPECT_TRUE(results.sums == Sums());
}

// A device that computes, but not these bytes.
class WrongStage final : public HostStage {
 public:
  enum class Where { kDecisions, kSums, kDecisionsOfRagged };
  explicit WrongStage(Where where) : where_(where) {}

  absl::Status Start(const Batch& batch) override {
    absl::Status status = HostStage::Start(batch);
    auto* const bytes = const_cast<std::byte*>(output().data());
    const StagedStretch& first = *batch.View(input().data(), nullptr, bytes).stretches;
    if (where_ == Where::kDecisionsOfRagged && first.behavior.layout != RowLayout::kRagged) {
      return status;
    }
    bytes[where_ == Where::kSums ? batch.sums_offset() : 0] ^= std::byte{3};
    return status;
  }

 private:
  Where where_;
};

TEST(SelfCheck, SeesWrongBytes) {
  EXPECT_TRUE(SelfCheck(*OnHost()).ok());
  using enum WrongStage::Where;
  for (const WrongStage::Where where : {kDecisions, kSums, kDecisionsOfRagged}) {
    std::vector<StagePair> stages(1);
    for (auto& stage : stages[0]) stage = std::make_unique<WrongStage>(where);
    const StagedBackend wrong("cuda/wrong", std::move(stages), std::make_unique<ScalarBackend>());
    EXPECT_EQ(SelfCheck(wrong).message(), "other bytes than the scalar backend's");
  }
}

// Memory that doesn't hold what was written to it.
class ForgetfulStage final : public HostStageWithMemory {
 public:
  explicit ForgetfulStage(HostResidentMemory& memory)
      : HostStageWithMemory(memory, When::kLate), memory_(memory) {}
  absl::Status Finish() override {
    absl::Status status = HostStageWithMemory::Finish();
    memory_.Discard(0, memory_.size());
    return status;
  }

 private:
  HostResidentMemory& memory_;
};

TEST(SelfCheck, SeesRowsThatDoNotStay) {
  EXPECT_TRUE(SelfCheck(*BackendOnHostStages(std::make_unique<ScalarBackend>(), 2,
                                             ResidentBlocks::kSlabBytes, When::kInAThread))
                  .ok());
  auto memory = std::make_unique<HostResidentMemory>(2 * ResidentBlocks::kSlabBytes);
  std::vector<StagePair> stages(1);
  for (auto& stage : stages[0]) stage = std::make_unique<ForgetfulStage>(*memory);
  const StagedBackend wrong("cuda/wrong", std::move(stages), std::make_unique<ScalarBackend>(),
                            std::move(memory));
  EXPECT_EQ(SelfCheck(wrong).message(), "other bytes than the scalar backend's");
}

}  // namespace
}  // namespace sis::cuda
