// The study's model against differences, its runs against their laws, its files against their form.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <numeric>
#include <set>
#include <sstream>

#include "client/study/cells.h"
#include "client/study/kernel_decisions.h"
#include "client/study/random.h"
#include "client/study/results.h"
#include "client/study/training.h"
#include "kernels/numerics/simd_targets.h"
// After the choice of targets.
#include "hwy/highway.h"

namespace sis::study {
namespace {

using ::testing::HasSubstr;

// A problem that is learned within a second.
StartSettings SmallStart() {
  StartSettings start;
  start.digits = 1;
  start.base = 4;
  start.accuracy = 0.2;
  return start;
}

CellSettings SmallCell() {
  CellSettings cell;
  cell.prompts = 8;
  cell.updates = 4;
  cell.rollouts = 4;
  cell.top_k = 4;
  cell.held_out = 32;
  return cell;
}

const std::vector<float>& SmallParameters() {
  static const std::vector<float> parameters = WarmUp(SmallStart(), 5);
  return parameters;
}

struct Trained {
  RunResult result;
  std::vector<float> parameters;
};

Trained TrainSmall(const CellSettings& cell, std::string_view arm_name) {
  const Arm arm = *ParseArm(arm_name);
  KernelDecisions decisions(arm, 5, cell.encoding);
  Trained trained{.result = {}, .parameters = SmallParameters()};
  trained.result = Train(SmallStart(), cell, arm, 5, decisions, trained.parameters);
  return trained;
}

class Gradients : public ::testing::TestWithParam<bool> {};

// Of every parameter array, the element with the largest gradient.
TEST_P(Gradients, AreThoseOfDifferences) {
  StartSettings start;
  start.experts = GetParam();
  const Task task = start.MakeTask();
  const Shape shape = start.MakeShape();
  const Problems problems(task, 16, 3);
  std::vector<float> parameters = shape.Initial(7);
  std::vector<float> gradients(shape.parameters());
  std::vector<float> ignored(shape.parameters());
  Transformer model(shape);
  SupervisedLoss(shape, task, problems, 0.1, parameters, model, gradients);

  std::vector<size_t> begins = {shape.tokens(), shape.positions(), shape.final_norm(), shape.head(),
                                shape.head_bias()};
  for (size_t i = 0; i < kLayers; ++i) {
    const LayerOffsets& at = shape.layer(i);
    begins.insert(begins.end(), {at.attention_norm, at.query_key_value, at.query_key_value + kWidth,
                                 at.query_key_value + 2 * kWidth, at.query_key_value_bias,
                                 at.attention_output, at.attention_output_bias, at.hidden_norm,
                                 at.up, at.up_bias, at.down, at.down_bias});
    if (start.experts) begins.push_back(at.router);
  }
  for (const size_t begin : begins) {
    const size_t end = std::min(begin + kWidth, gradients.size());
    size_t at = begin;
    for (size_t i = begin; i < end; ++i) {
      if (std::abs(gradients[i]) > std::abs(gradients[at])) at = i;
    }
    const float value = parameters[at];
    const auto loss = [&](float moved) {
      parameters[at] = moved;
      return SupervisedLoss(shape, task, problems, 0.1, parameters, model, ignored);
    };
    // A router's choice of experts must not change.
    const float step = start.experts ? 2e-3f : 1e-2f;
    const double difference = (loss(value + step) - loss(value - step)) / (2.0 * step);
    parameters[at] = value;
    EXPECT_NEAR(gradients[at], difference, 2e-4 + 0.02 * std::abs(difference)) << "at " << at;
    EXPECT_NE(gradients[at], 0.0f) << "at " << at;
  }
}

INSTANTIATE_TEST_SUITE_P(DenseAndMixture, Gradients, ::testing::Bool());

// Generation, position by position over keys and values, and the forward pass of the trainer give
// the same bits: without an update in between nothing has moved.
TEST(Training, EqualPoliciesHaveNoDeviation) {
  CellSettings cell = SmallCell();
  cell.updates = 1;
  cell.top_k = SmallStart().MakeTask().vocabulary();
  const Trained plain = TrainSmall(cell, "importance_sampling");
  EXPECT_EQ(plain.result.d, 0.0);
  EXPECT_EQ(plain.result.accept_rate, 1.0);
  EXPECT_NE(plain.parameters, SmallParameters());
  for (const char* arm : {"grpo", "grpo+sampled", "no_correction", "tis+expected",
                          "soft_acceptance+sampled", "dppo_top_k+positive"}) {
    EXPECT_EQ(TrainSmall(cell, arm).parameters, plain.parameters) << arm;
  }
}

TEST(Training, ARunIsAFunctionOfItsSeed) {
  const Trained first = TrainSmall(SmallCell(), "grpo+sampled");
  EXPECT_EQ(TrainSmall(SmallCell(), "grpo+sampled").parameters, first.parameters);
  EXPECT_GT(first.result.d, first.result.d_sis);
  EXPECT_EQ(first.result.curve.size(), kCurvePoints);
  for (const char* arm : {"grpo", "grpo+expected", "grpo+positive", "grpo+random", "gspo+sampled",
                          "soft_acceptance+sampled", "soft_acceptance"}) {
    EXPECT_NE(TrainSmall(SmallCell(), arm).parameters, first.parameters) << arm;
  }
}

// Of the vectors that have a fused multiplication and addition; others would round twice.
TEST(Training, EveryWidthOfVectorsGivesTheSameBits) {
  const Trained best = TrainSmall(SmallCell(), "grpo+sampled");
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (target != HWY_AVX3 && target != HWY_AVX2) continue;
    hwy::SetSupportedTargetsForTest(target);
    EXPECT_EQ(TrainSmall(SmallCell(), "grpo+sampled").parameters, best.parameters)
        << hwy::TargetName(target);
    EXPECT_EQ(WarmUp(SmallStart(), 5), SmallParameters()) << hwy::TargetName(target);
    hwy::SetSupportedTargetsForTest(0);
  }
}

TEST(Training, RecomputingWhatTheEngineKnowsExactlyChangesNothing) {
  CellSettings cell = SmallCell();
  const Trained engine = TrainSmall(cell, "grpo+sampled");
  cell.recomputed = true;
  EXPECT_EQ(TrainSmall(cell, "grpo+sampled").parameters, engine.parameters);
  cell.engine = {.kind = EngineKind::kIntegerWeights, .bits = 4};
  const Trained recomputed = TrainSmall(cell, "grpo+sampled");
  cell.recomputed = false;
  EXPECT_GT(TrainSmall(cell, "grpo+sampled").result.d, recomputed.result.d);
}

TEST(Engine, RoundsToAsManyValuesAsItHas) {
  const Shape shape = SmallStart().MakeShape();
  const std::vector<float> parameters = shape.Initial(1);
  const Shape::Block matrix = shape.matrices().front();
  const auto values = [&](const Engine& engine) {
    const std::vector<float> rounded = engine.Round(shape, parameters);
    EXPECT_EQ(engine.Round(shape, rounded), rounded);
    const auto first = rounded.begin() + static_cast<std::ptrdiff_t>(matrix.first);
    return std::set<float>(first, first + static_cast<std::ptrdiff_t>(matrix.count));
  };
  EXPECT_EQ(values({.kind = EngineKind::kIntegerWeights, .bits = 4}).size(), 15);
  for (const float value : values({.kind = EngineKind::kFloatWeights, .bits = 2})) {
    int exponent = 0;
    const float mantissa = std::frexp(value, &exponent) * 8.0f;
    EXPECT_EQ(mantissa, std::round(mantissa)) << value;
  }
}

constexpr char kDesign[] =
    "first_seed 9\n"
    "start easy digits=1  # a comment\n"
    "arms both grpo soft_acceptance+sampled\n"
    "\n"
    "cell a start=easy arms=both seeds=2 engine=int5 lag=3\n"
    "cell b start=easy arms=both seeds=1 encoding=12bit recomputed=true\n"
    "arms third tis\n"
    "more b arms=third seeds=2\n"
    "primary a soft_acceptance+sampled b grpo\n";

TEST(Design, IsReadLineByLine) {
  const absl::StatusOr<Design> design = ParseDesign(kDesign);
  ASSERT_TRUE(design.ok()) << design.status();
  EXPECT_EQ(design->cells[0].settings.lag, 3);
  EXPECT_EQ(design->cells[0].settings.engine.bits, 5);
  EXPECT_EQ(design->cells[1].settings.encoding, LogProbEncoding::kFixed12);
  const std::vector<RunName> runs = RunsOf(*design);
  ASSERT_EQ(runs.size(), 8);
  EXPECT_EQ(runs[1].text(), "a soft_acceptance+sampled 9");
  EXPECT_EQ(runs[7].text(), "b tis 10");
  EXPECT_EQ(runs[7].cell->settings.encoding, LogProbEncoding::kFixed12);
}

TEST(Design, ErrorsNameLineAndWord) {
  const std::pair<std::string, std::string> kWrong[] = {
      {"cell c start=easy arms=both seeds=1 engine=int99", "line 10: engine=int99"},
      {"cell c start=easy arms=both seeds=1 top_k=20", "top_k at most 19"},
      {"cell c start=hard arms=both seeds=1", "start=hard"},
      {"arms x grpo+wishes", "wishes"},
      {"primary a grpo a tis", "tis: no arm of a"},
      {"nonsense 3", "nonsense"}};
  for (const auto& [line, message] : kWrong) {
    EXPECT_THAT(std::string(ParseDesign(kDesign + line).status().message()), HasSubstr(message));
  }
}

// The seeds 1 to 316 were used while the design was made.
TEST(Design, OfTheStudyIsValid) {
  std::ifstream file("client/study/cells.txt");
  std::stringstream text;
  text << file.rdbuf();
  const absl::StatusOr<Design> design = ParseDesign(text.str());
  ASSERT_TRUE(design.ok()) << design.status();
  EXPECT_GT(design->first_seed, 316);
}

TEST(ResultsFile, IsContinuedAfterALineThatWasCutOff) {
  const Design design = *ParseDesign(kDesign);
  const std::vector<RunName> runs = RunsOf(design);
  const std::string path = ::testing::TempDir() + "/results.txt";
  const auto content = [&] {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  };
  const RunResult result{.final_reward = 0.25, .curve = {0.5, 0.75}};
  {
    const auto results = *Results::Open(path, runs);
    ASSERT_TRUE(results->Add(runs[2], result).ok());
    ASSERT_TRUE(results->Add(runs[0], result).ok());
  }
  std::ofstream(path, std::ios::app) << "b grpo 9 0.1";
  const auto results = Results::Open(path, runs);
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_TRUE((*results)->Has(runs[0]));
  EXPECT_FALSE((*results)->Has(runs[1]));
  EXPECT_EQ((*results)->count(), 2);
  EXPECT_THAT(content(), ::testing::EndsWith("\na grpo 9 0.25 0 0 0 0 0 0 0 0 0.5,0.75\n"
                                             "b grpo 9 0.25 0 0 0 0 0 0 0 0 0.5,0.75\n"));
  std::ofstream(path, std::ios::app) << "c grpo 9 0.1\n";
  EXPECT_THAT(std::string(Results::Open(path, runs).status().message()), HasSubstr("c grpo 9"));
}

}  // namespace
}  // namespace sis::study
