// Tests cutting, staging and the fallback. tests/conformance tests the results of all backends,
// over the same stages too.
#include "kernels/cuda/evaluate/staged_backend.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/block/block.h"
#include "kernels/block/pack.h"
#include "kernels/cuda/evaluate/self_check.h"
#include "kernels/cuda/testing/host_stage.h"
#include "kernels/testing/scalar_backend.h"
#include "tests/conformance/policy_pairs.h"
#include "tests/conformance/positions.h"

namespace sis::cuda {
namespace {

// A call of many batches, with the same 500 positions repeated. With tags each range of 50
// positions has its own block.
struct LongCall {
  static constexpr size_t kSegments = 120;
  static constexpr size_t kPositions = 500;
  static constexpr size_t kBlock = 50;

  explicit LongCall(uint32_t seed, BlockEncoding encoding = BlockEncoding::kFixed16) {
    std::mt19937_64 random(seed);
    const Positions positions = RandomPositions(random, 50, kPositions);
    parameters.draw = random();
    packed.emplace(positions, 0, Packing{.encoding = encoding});
    for (uint32_t first = 0; first < kPositions; first += kBlock) {
      std::vector<std::byte>& bytes =
          bytes_.emplace_back(SliceBlock(packed->blocks()[0], first, kBlock));
      const size_t size = bytes.size();
      bytes.resize(size + kBlockSlack);
      blocks_.push_back(*OpenBlock(std::span(bytes).first(size), true));
    }
  }

  // Some ranges share their sums.
  struct Output {
    std::vector<Results> results = std::vector<Results>(kSegments, Results(kPositions));
    bool operator==(const Output& other) const {
      return std::ranges::equal(results, other.results, [](const Results& a, const Results& b) {
        return static_cast<bool>(SameBytes(a, b));
      });
    }
  };

  std::vector<BackendRange> SegmentsInto(Output& output, bool with_tags = false) const {
    const size_t length = with_tags ? kBlock : kPositions;
    std::vector<BackendRange> ranges;
    for (size_t i = 0; i < kSegments; ++i) {
      for (size_t first = 0; first < kPositions; first += length) {
        BackendRange& range =
            ranges.emplace_back(packed->RangeOf(first, length, i / 2, output.results[i], first));
        range.first_position = static_cast<uint32_t>(1000 * i + first);
        if (i % 3 == 1) range.sums = &output.results[i - 1].sums;
        if (!with_tags) continue;
        const size_t block = first / kBlock;
        range.behavior = BlockRange(blocks_[block], 0, kBlock, &tags_[block]);
      }
    }
    return ranges;
  }

  Output EvaluateBy(const Backend& backend, bool with_tags = false) const {
    Output output;
    backend.Evaluate(parameters, SegmentsInto(output, with_tags));
    return output;
  }

  EvaluateParameters parameters{.top_k = 43, .draw = 0};
  std::optional<Packed> packed;

 private:
  std::deque<std::vector<std::byte>> bytes_;
  std::vector<BlockView> blocks_;
  std::array<BlockTag, kPositions / kBlock> tags_;
};

// A backend with one pair of these stages.
template <typename MakeStage>
std::unique_ptr<const StagedBackend> OnStages(const std::string& name, const MakeStage& make_stage,
                                              size_t slabs = 0,
                                              size_t slab_bytes = ResidentBlocks::kSlabBytes) {
  return BackendOnStages(name, std::make_unique<ScalarBackend>(), make_stage, 1, slabs, slab_bytes);
}

// The calls of all stages, by which they fail on request.
struct Plan {
  int start_that_fails = -1;
  int finish_that_fails = -1;
  std::atomic<int> starts = 0;
  std::atomic<int> finishes = 0;
};

// Fails before the uploads, and after the work.
class FailingStage final : public HostStage {
 public:
  FailingStage(Plan& plan, HostResidentMemory* memory) : HostStage(memory), plan_(plan) {}

  absl::Status Start(const Batch& batch) override {
    if (plan_.starts++ == plan_.start_that_fails) return absl::InternalError("start lost");
    return HostStage::Start(batch);
  }
  absl::Status Finish() override {
    absl::Status status = HostStage::Finish();
    if (plan_.finishes++ == plan_.finish_that_fails) return absl::InternalError("finish lost");
    return status;
  }

 private:
  Plan& plan_;
};

constexpr size_t kSlabBytes = size_t{32} << 10;  // some five blocks

std::unique_ptr<const StagedBackend> WithPlan(Plan& plan, size_t slabs = 0) {
  const auto make_stage = [&](HostResidentMemory* memory) {
    return std::make_unique<FailingStage>(plan, memory);
  };
  return OnStages("cuda/failing", make_stage, slabs, kSlabBytes);
}

TEST(StagedBackend, CutsLongCallsIntoBatches) {
  for (const BlockEncoding encoding : {BlockEncoding::kFloat32, BlockEncoding::kFixed16}) {
    const LongCall call(1, encoding);
    Plan plan;
    EXPECT_TRUE(call.EvaluateBy(*WithPlan(plan)) == call.EvaluateBy(ScalarBackend()));
    EXPECT_GE(plan.starts, 3);
    EXPECT_EQ(plan.starts, plan.finishes);
  }
}

// Sets of all lengths, so that batches begin at any slot of a block.
TEST(StagedBackend, CutsLongRanges) {
  std::mt19937_64 random(2);
  const Positions positions = RandomPositions(random, kMaxPairTokens, 30'000);
  for (const BlockEncoding encoding : {BlockEncoding::kFloat32, BlockEncoding::kFixed16}) {
    const Packed packed(positions, 5, {.encoding = encoding});
    const EvaluateParameters parameters{.top_k = 50, .draw = 3};
    const Results expected = sis::Evaluate(ScalarBackend(), parameters, 4, packed);
    ASSERT_EQ(expected.sums.invalid, 0);
    Plan plan;
    EXPECT_TRUE(SameBytes(sis::Evaluate(*WithPlan(plan), parameters, 4, packed), expected));
    EXPECT_GE(plan.starts, 2);
  }
}

// A batch takes as many positions as fit, and all positions of a resident block.
TEST(Batch, TakesPositionsUntilItIsFull) {
  std::mt19937_64 random(10);
  const Positions positions = RandomPositions(random, 60, 2000);
  const Packed packed(positions, 0, {.encoding = BlockEncoding::kFloat32});
  Results results(2000);
  const BackendRange range = packed.RangeOf(0, 2000, 1, results, 0);
  const size_t slots = range.behavior.used_slots;
  for (const size_t capacity : {100'000, 150'000}) {
    Batch batch(capacity, kStagedOutputBytes);
    batch.Reset({.top_k = 60, .draw = 1});
    const size_t taken = batch.Take(range, 0);
    EXPECT_LT(taken, 2000);
    EXPECT_EQ(taken % kTilePositions, 0);
    EXPECT_LE(batch.input_bytes(), capacity);
    EXPECT_GE(batch.input_bytes(), capacity - Batch::kMaxTileBytes - 2 * Batch::kRangeBytes);
    EXPECT_EQ(batch.Take(range, taken), 0);
  }
  HostResidentMemory memory(size_t{1} << 20);
  ResidentBlocks resident(memory, size_t{1} << 20);
  const BlockTag tag;
  BackendRange with_tag = range;
  with_tag.behavior.tag = &tag;
  Batch batch(kStagedInputBytes, kStagedOutputBytes, &resident);
  for (const bool there : {false, true}) {
    batch.Reset({.top_k = 60, .draw = 1});
    ASSERT_EQ(batch.Take(with_tag, 0), 2000);
    EXPECT_EQ(batch.Uploads().size(), there ? 0 : 1);
    // The current values, and little more.
    EXPECT_LT(batch.input_bytes(), slots * sizeof(float) + 10'000);
    batch.Done();
  }
}

TEST(StagedBackend, ManyThreads) {
  const LongCall call(3);
  const LongCall::Output expected = call.EvaluateBy(ScalarBackend());
  const auto backend = BackendOnHostStages(std::make_unique<ScalarBackend>());
  std::atomic<int> equal = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 5; ++i) {
    threads.emplace_back([&] { equal += call.EvaluateBy(*backend) == expected; });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(equal, 5);
}

TEST(StagedBackend, AFailingStageDoesNotChangeResults) {
  const LongCall call(4);
  const LongCall::Output expected = call.EvaluateBy(ScalarBackend());
  for (const size_t slabs : {0, 4}) {
    const bool with_tags = slabs > 0;
    for (const bool in_start : {true, false}) {
      for (const int number : {0, 1, 2}) {
        Plan plan;
        (in_start ? plan.start_that_fails : plan.finish_that_fails) = number;
        const auto backend = WithPlan(plan, slabs);
        testing::internal::CaptureStderr();
        EXPECT_TRUE(call.EvaluateBy(*backend, with_tags) == expected) << in_start << " " << number;
        EXPECT_EQ(testing::internal::GetCapturedStderr(),
                  std::string("backend: cuda/failing failed, from now on scalar (") +
                      (in_start ? "start" : "finish") + " lost)\n");

        // The fallback serves all later calls, without another log line.
        const int starts = plan.starts;
        testing::internal::CaptureStderr();
        EXPECT_TRUE(call.EvaluateBy(*backend, with_tags) == expected);
        EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
        EXPECT_EQ(plan.starts, starts);

        // Another call may have passed the check for failure. It must not use the failed call's
        // copies.
        LongCall::Output output;
        EXPECT_TRUE(
            backend->TryEvaluate(call.parameters, call.SegmentsInto(output, with_tags)).ok());
        EXPECT_TRUE(output == expected);
      }
    }
  }
}

TEST(StagedBackend, BlocksThatStayAreSentOnce) {
  for (const BlockEncoding encoding : {BlockEncoding::kFloat32, BlockEncoding::kFixed16}) {
    const LongCall call(6, encoding);
    const LongCall::Output expected = call.EvaluateBy(ScalarBackend());
    Plan plan;
    const auto backend = WithPlan(plan, 4);
    EXPECT_TRUE(call.EvaluateBy(*backend, true) == expected);
    EXPECT_EQ(backend->resident_blocks().copies, 10);
    const int64_t passes = backend->resident_blocks().passes;
    EXPECT_TRUE(call.EvaluateBy(*backend, true) == expected);
    EXPECT_EQ(backend->resident_blocks().copies, 10);
    EXPECT_EQ(backend->resident_blocks().passes, passes);
    EXPECT_GE(plan.starts, 4);
  }
}

// Far less space than the call needs.
TEST(StagedBackend, BlocksThatDoNotFitAreSentEachTime) {
  const LongCall call(8);
  const LongCall::Output expected = call.EvaluateBy(ScalarBackend());
  Plan plan;
  const auto backend = WithPlan(plan, 1);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(call.EvaluateBy(*backend, true) == expected);
  EXPECT_GT(backend->resident_blocks().passes, 10);
  EXPECT_GT(backend->resident_blocks().hits, 10);
}

TEST(StagedBackend, AFailureLeavesSumsAlone) {
  const LongCall call(5);
  Plan plan;
  plan.finish_that_fails = 2;
  const auto backend = WithPlan(plan);
  LongCall::Output output;
  EXPECT_FALSE(backend->TryEvaluate(call.parameters, call.SegmentsInto(output)).ok());
  for (const Results& results : output.results) EXPECT_TRUE(results.sums == Sums());
}

// A device that returns wrong bytes.
class WrongStage final : public HostStage {
 public:
  enum class Where { kDecisions, kSums, kDecisionsOfFixed16 };
  explicit WrongStage(Where where) : where_(where) {}

  absl::Status Start(const Batch& batch) override {
    absl::Status status = HostStage::Start(batch);
    auto* const bytes = const_cast<std::byte*>(output().data());
    const StagedRange& first = *batch.View(input().data(), nullptr, bytes).ranges;
    if (where_ == Where::kDecisionsOfFixed16 && first.encoding != BlockEncoding::kFixed16) {
      return status;
    }
    bytes[where_ == Where::kSums ? batch.sums_offset() : 0] ^= std::byte{3};
    return status;
  }

 private:
  Where where_;
};

TEST(SelfCheck, SeesWrongBytes) {
  EXPECT_TRUE(
      SelfCheck(*BackendOnHostStages(std::make_unique<ScalarBackend>()), ScalarBackend()).ok());
  using enum WrongStage::Where;
  for (const WrongStage::Where where : {kDecisions, kSums, kDecisionsOfFixed16}) {
    const auto wrong =
        OnStages("cuda/wrong", [&](auto*) { return std::make_unique<WrongStage>(where); });
    EXPECT_EQ(SelfCheck(*wrong, ScalarBackend()).message(),
              "the device gives other bytes than the CPU");
  }
}

// Memory that loses its content.
class ForgetfulStage final : public HostStage {
 public:
  explicit ForgetfulStage(HostResidentMemory* memory) : HostStage(memory), memory_(*memory) {}
  absl::Status Finish() override {
    absl::Status status = HostStage::Finish();
    memory_.Discard(0, memory_.size());
    return status;
  }

 private:
  HostResidentMemory& memory_;
};

TEST(SelfCheck, SeesBlocksThatDoNotStay) {
  EXPECT_TRUE(SelfCheck(*BackendOnHostStages(std::make_unique<ScalarBackend>(), 2,
                                             ResidentBlocks::kSlabBytes, When::kInAThread),
                        ScalarBackend())
                  .ok());
  const auto make_stage = [](HostResidentMemory* memory) {
    return std::make_unique<ForgetfulStage>(memory);
  };
  EXPECT_EQ(SelfCheck(*OnStages("cuda/wrong", make_stage, 2), ScalarBackend()).message(),
            "the device gives other bytes than the CPU");
}

}  // namespace
}  // namespace sis::cuda
