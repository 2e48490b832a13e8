// The study's model against differences, its runs against their laws, its settings by name.
#include "client/study/training.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "client/study/mismatch.h"
#include "client/study/settings.h"
#include "kernels/numerics/simd_targets.h"
// After the choice of targets.
#include "hwy/highway.h"

namespace sis::study {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatEq;
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

Trained TrainSmall(CellSettings cell, const std::string& arm) {
  Trained trained{.result = {}, .parameters = SmallParameters()};
  EXPECT_TRUE(Set("arm=" + arm, SmallStart(), cell).ok());
  trained.result = Train(SmallStart(), cell, 5, trained.parameters);
  return trained;
}

struct Model {
  int width;
  int layers;
  bool experts;
};
class Gradients : public ::testing::TestWithParam<Model> {};

// Of every parameter array, the element with the largest gradient.
TEST_P(Gradients, AreThoseOfDifferences) {
  StartSettings start;
  start.width = GetParam().width;
  start.layers = GetParam().layers;
  start.experts = GetParam().experts;
  const Task task = start.MakeTask();
  const Shape shape = start.MakeShape();
  const std::vector<Problem> problems = task.Draw(16, 3);
  std::vector<float> parameters = shape.Initial(7);
  std::vector<float> gradients(shape.parameters);
  std::vector<float> d_logits;
  Transformer model(shape);
  const auto loss = [&] {
    return SupervisedLoss(shape, task, problems, 0.1, parameters, model, d_logits);
  };
  loss();
  model.Backward(problems.size(), d_logits, gradients);

  std::vector<size_t> begins;
  for (const Shape::Array& array : shape.arrays) begins.push_back(array.first);
  for (const Shape::Layer& layer : shape.layers) {
    // Of the keys and of the values.
    begins.push_back(layer.query_key_value.weights + shape.width);
    begins.push_back(layer.query_key_value.weights + 2 * shape.width);
  }
  for (const size_t begin : begins) {
    const size_t end = std::min(begin + shape.width, gradients.size());
    size_t at = begin;
    for (size_t i = begin; i < end; ++i) {
      if (std::abs(gradients[i]) > std::abs(gradients[at])) at = i;
    }
    const float value = parameters[at];
    // A router's choice of experts must not change.
    const float step = start.experts ? 2e-3f : 1e-2f;
    parameters[at] = value + step;
    const double above = loss();
    parameters[at] = value - step;
    const double difference = (above - loss()) / (2.0 * step);
    parameters[at] = value;
    EXPECT_NEAR(gradients[at], difference, 2e-4 + 0.02 * std::abs(difference)) << "at " << at;
    EXPECT_NE(gradients[at], 0.0f) << "at " << at;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Gradients,
                         ::testing::Values(Model{64, 2, false}, Model{64, 2, true},
                                           Model{128, 4, false}, Model{32, 1, true}));

// Explored rules by which a token that has not moved weighs 1.
constexpr const char* kExploredOfOne[] = {"vespo",
                                          "drpo0.2",
                                          "response_mask0.5",
                                          "total_variation0.5",
                                          "kl0.1",
                                          "inverse_envelope",
                                          "tail_guard",
                                          "position_overlap",
                                          "effective_sample_size0.9",
                                          "by_total_variation0.05"};

// Generation, position by position over keys and values, and the forward pass of the trainer give
// the same bits: without an update in between nothing has moved.
TEST(Training, EqualPoliciesHaveNoDeviation) {
  CellSettings cell = SmallCell();
  cell.updates = 1;
  cell.top_k = SmallStart().MakeTask().vocabulary;
  const Trained plain = TrainSmall(cell, "importance_sampling");
  EXPECT_EQ(plain.result.d, 0.0);
  EXPECT_EQ(plain.result.accept_rate, 1.0);
  EXPECT_NE(plain.parameters, SmallParameters());
  for (const char* arm : {
           "grpo",
           "grpo+sampled",
           "no_correction",
           "tis+expected",
           "soft_acceptance+sampled",
           "dppo_top_k+positive",
           "damped_truncation",
           "damped_truncation+without_sets",
           "soft_acceptance+sampled+without_sets",
           "grpo+tis2",
           "grpo+sequence_mask3",
       }) {
    EXPECT_EQ(TrainSmall(cell, arm).parameters, plain.parameters) << arm;
  }
  for (const char* arm : kExploredOfOne) {
    EXPECT_EQ(TrainSmall(cell, arm).parameters, plain.parameters) << arm;
  }
}

TEST(Training, ARunIsAFunctionOfItsSeed) {
  const Trained first = TrainSmall(SmallCell(), "grpo+sampled");
  EXPECT_EQ(TrainSmall(SmallCell(), "grpo+sampled").parameters, first.parameters);
  EXPECT_GT(first.result.d, first.result.d_sis);
  EXPECT_GT(first.result.curve.back(), 0.0);
  for (const char* arm : {"grpo", "grpo+expected", "grpo+positive", "grpo+random", "gspo+sampled",
                          "soft_acceptance+sampled", "soft_acceptance", "damped_truncation",
                          "damped_truncation+without_sets", "soft_acceptance+sampled+without_sets",
                          "budgeted_rejection1", "acceptance_budget0.9"}) {
    EXPECT_NE(TrainSmall(SmallCell(), arm).parameters, first.parameters) << arm;
  }
  for (const char* arm : kExploredOfOne) {
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

// So the parts that two engines, or weights of several ages, generate are of one rollout.
TEST(Generator, PartsOfARolloutAreTheWhole) {
  StartSettings start = SmallStart();
  start.experts = true;
  const Task task = start.MakeTask();
  const Shape shape = start.MakeShape();
  const std::vector<float> parameters = shape.Initial(3);
  const std::vector<Problem> problems = task.Draw(6, 1);
  Engine engine;
  engine.router_deviation = 2.0f;
  Generator generator(shape, task);
  const Responses whole = generator.Generate(parameters, engine, problems, kGroup, 7);
  Responses parts;
  for (const auto& [first, count] : {std::pair<size_t, size_t>{0, 1}, {1, 3}, {4, 2}}) {
    parts.Append(generator.Generate(parameters, engine, std::span(problems).subspan(first, count),
                                    kGroup, 7, Decoding::kSample, first * kGroup));
  }
  EXPECT_EQ(parts.tokens, whole.tokens);
  EXPECT_EQ(parts.lengths, whole.lengths);
  EXPECT_EQ(parts.log_probs, whole.log_probs);
}

TEST(Training, TwoEnginesThatAgreeAreOne) {
  CellSettings cell = SmallCell();
  ASSERT_TRUE(Set("engine=int4 recomputed=true", SmallStart(), cell).ok());
  const Trained one = TrainSmall(cell, "soft_acceptance+expected");
  ASSERT_TRUE(Set("second_engine=int4", SmallStart(), cell).ok());
  EXPECT_EQ(TrainSmall(cell, "soft_acceptance+expected").parameters, one.parameters);
  ASSERT_TRUE(Set("second_engine=e5m2", SmallStart(), cell).ok());
  EXPECT_NE(TrainSmall(cell, "soft_acceptance+expected").parameters, one.parameters);
}

// The sum over ages lies between.
TEST(Training, WeightsOfMixedAgesAreLessStaleThanTheOldest) {
  CellSettings cell = SmallCell();
  cell.rollouts = 12;
  const Trained fresh = TrainSmall(cell, "grpo");
  cell.mixed_ages = true;
  EXPECT_EQ(TrainSmall(cell, "grpo").parameters, fresh.parameters);
  cell.lag = 6;
  const Trained mixed = TrainSmall(cell, "grpo");
  cell.mixed_ages = false;
  const Trained stale = TrainSmall(cell, "grpo");
  EXPECT_LT(fresh.result.d, mixed.result.d);
  EXPECT_LT(mixed.result.d, stale.result.d);
}

TEST(Training, RecomputingWhatTheEngineKnowsExactlyChangesNothing) {
  CellSettings cell = SmallCell();
  const Trained engine = TrainSmall(cell, "grpo+sampled");
  cell.recomputed = Recomputed::kByBehavior;
  EXPECT_EQ(TrainSmall(cell, "grpo+sampled").parameters, engine.parameters);
  ASSERT_TRUE(Set("engine=int4", SmallStart(), cell).ok());
  const Trained recomputed = TrainSmall(cell, "grpo+sampled");
  cell.recomputed = Recomputed::kNever;
  EXPECT_GT(TrainSmall(cell, "grpo+sampled").result.d, recomputed.result.d);
}

// Without recomputation there is no mismatch; rollouts of older weights then have one by staleness.
TEST(Training, WeightsForTheMismatchAreOfTheEngineBesideTheOldPolicy) {
  CellSettings cell = SmallCell();
  ASSERT_TRUE(Set("engine=int4 lag=2", SmallStart(), cell).ok());
  const Trained plain = TrainSmall(cell, "grpo");
  for (const char* arm : {"grpo+tis2", "grpo+tis3", "grpo+sequence_mask3"}) {
    EXPECT_EQ(TrainSmall(cell, arm).parameters, plain.parameters) << arm;
  }
  std::set<std::vector<float>> all;
  for (const char* recomputed : {"recomputed=true", "recomputed=proximal"}) {
    ASSERT_TRUE(Set(recomputed, SmallStart(), cell).ok());
    for (const char* arm : {"grpo", "grpo+tis2", "grpo+sequence_mask3"}) {
      all.insert(TrainSmall(cell, arm).parameters);
    }
  }
  EXPECT_EQ(all.size(), 6);
}

TEST(MismatchWeight, TruncatesTokensOrMasksResponses) {
  const std::vector<float> engine = {-1.0f, -2.0f, -3.0f};
  const std::vector<float> old = {-0.5f, -0.5f, -3.5f};  // ratios e^0.5, e^1.5, e^-0.5
  const auto weights = [&](MismatchWeight::Kind kind, double limit) {
    std::vector<float> coefficients = {2.0f, 1.0f, -1.0f};
    MismatchWeight{kind, limit}.Apply(old, engine, coefficients);
    return coefficients;
  };
  using enum MismatchWeight::Kind;
  EXPECT_THAT(weights(kNone, 0.0), ElementsAre(2.0f, 1.0f, -1.0f));
  EXPECT_THAT(weights(kTokenTruncation, 2.0),
              ElementsAre(FloatEq(3.2974425f), 2.0f, FloatEq(-0.60653067f)));
  EXPECT_THAT(weights(kSequenceMask, 5.0),
              ElementsAre(FloatEq(8.963378f), FloatEq(4.481689f), FloatEq(-4.481689f)));
  EXPECT_THAT(weights(kSequenceMask, 4.0), ElementsAre(0.0f, 0.0f, 0.0f));
}

TEST(Engine, RoundsToAsManyValuesAsItHas) {
  const Shape shape = SmallStart().MakeShape();
  const std::vector<float> parameters = shape.Initial(1);
  const auto matrix = std::ranges::find(shape.arrays, Shape::Kind::kMatrix, &Shape::Array::kind);
  const auto values = [&](const std::string& name) {
    CellSettings cell;
    EXPECT_TRUE(Set("engine=" + name, {}, cell).ok());
    const Engine& engine = cell.engine;
    const std::vector<float> rounded = engine.Round(shape, parameters);
    EXPECT_EQ(engine.Round(shape, rounded), rounded);
    const auto first = rounded.begin() + static_cast<std::ptrdiff_t>(matrix->first);
    return std::set<float>(first, first + static_cast<std::ptrdiff_t>(matrix->count));
  };
  EXPECT_EQ(values("int4").size(), 15);
  for (const float value : values("e5m2")) {
    int exponent = 0;
    const float mantissa = std::frexp(value, &exponent) * 8.0f;
    EXPECT_EQ(mantissa, std::round(mantissa)) << value;
  }
}

// What the words of cells.txt set, and what is said of those that are wrong.
TEST(Settings, AreReadWordByWord) {
  StartSettings start;
  ASSERT_TRUE(Set("digits=1 experts=true smoothing=0.5", start).ok());
  EXPECT_EQ(start.MakeTask().context(), 7);
  EXPECT_TRUE(start.experts);
  EXPECT_EQ(start.smoothing, 0.5);
  EXPECT_EQ(start.base, 16);
  CellSettings cell;
  ASSERT_TRUE(
      Set("lag=3 encoding=12bit recomputed=true engine=router0.5 arm=dapo+random", start, cell)
          .ok());
  EXPECT_EQ(cell.lag, 3);
  EXPECT_EQ(cell.encoding, LogProbEncoding::kFixed12);
  EXPECT_EQ(cell.recomputed, Recomputed::kByBehavior);
  EXPECT_EQ(cell.engine.router_deviation, 0.5f);
  EXPECT_TRUE(cell.arm.leaves_out_equal_groups);
  EXPECT_EQ(cell.arm.correction, Correction::kRandom);
  EXPECT_EQ(cell.top_k, 10);
  ASSERT_TRUE(Set("recomputed=proximal arm=soft_acceptance+expected+tis2", start, cell).ok());
  EXPECT_EQ(cell.recomputed, Recomputed::kByProximal);
  EXPECT_EQ(cell.arm.correction, Correction::kExpected);
  EXPECT_EQ(cell.arm.mismatch.limit, 2.0);
}

TEST(Training, SetsEndWhereTheirMassReachesTheTarget) {
  const StartSettings start = SmallStart();
  CellSettings cell = SmallCell();
  Trainer whole(start, cell, 5, SmallParameters());
  const Records fixed = whole.Generate();
  cell.mass = 0.9;
  Trainer trainer(start, cell, 5, SmallParameters());
  const Records& cut = trainer.Generate();
  const MiniBatch batch = trainer.Gather(0);
  EXPECT_EQ(cut.sampled_ids, fixed.sampled_ids);
  size_t left_out = 0;
  for (size_t i = 0; i < cut.lengths.size(); ++i) {
    for (size_t t = 0; t < cut.lengths[i]; ++t) {
      float mass = 0.0f;
      for (size_t slot = 0; slot < static_cast<size_t>(cut.top_k); ++slot) {
        const size_t at = (i * cut.length + t) * static_cast<size_t>(cut.top_k) + slot;
        const bool kept = mass < 0.9f;
        EXPECT_EQ(cut.ids[at], kept ? fixed.ids[at] : -1);
        EXPECT_EQ(cut.log_probs[at], kept ? fixed.log_probs[at] : -INFINITY);
        mass += std::exp(fixed.log_probs[at]);
        left_out += kept ? 0 : 1;
      }
    }
  }
  EXPECT_GT(left_out, 100);
  // Of the first mini-batch: unused slots have no current log-prob either.
  size_t row = 0;
  for (const size_t response : batch.responses) {
    for (size_t t = 0; t < cut.lengths[response]; ++t, ++row) {
      for (size_t slot = 0; slot < static_cast<size_t>(cut.top_k); ++slot) {
        const size_t at = (response * cut.length + t) * static_cast<size_t>(cut.top_k) + slot;
        const float current = batch.log_probs[row * static_cast<size_t>(cut.top_k) + slot];
        EXPECT_EQ(current == -INFINITY, cut.ids[at] < 0);
      }
    }
  }
}

TEST(Settings, ErrorsNameTheWord) {
  for (const char* wrong :
       {"task=chess", "digits=0", "digits=two", "experts=2", "wishes=3", "width=24", "layers=0"}) {
    StartSettings start;
    EXPECT_THAT(std::string(Set(wrong, start).message()), ::testing::StartsWith(wrong));
  }
  for (const char* wrong :
       {"engine=int99", "engine=e3m4", "engine=router", "second_engine=int99", "encoding=11bit",
        "prompts=-1", "lag", "arm=grpo+wishes", "arm=wishes", "arm=grpo+"}) {
    CellSettings cell;
    EXPECT_THAT(std::string(Set(wrong, {}, cell).message()), ::testing::StartsWith(wrong));
  }
  for (const char* wrong : {"top_k=20", "mass=1.5", "mass=nan", "updates=0", "rollouts=0",
                            "prompts=0", "prompts=2 updates=17"}) {
    CellSettings cell;
    EXPECT_THAT(std::string(Set(wrong, {}, cell).message()), HasSubstr("top_k at most 19"));
  }
}

}  // namespace
}  // namespace sis::study
