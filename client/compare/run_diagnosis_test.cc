#include "client/compare/run_diagnosis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"

namespace sis {
namespace {

// Of a server that keeps, of each sequence, what lies beyond its first positions.
RunCalls Keeping(const std::vector<uint64_t>& first_positions) {
  return {.get_run = [] { return v1::Run(); },
          .inspect_run =
              [=] {
                v1::InspectRunResponse response;
                for (size_t i = 0; i < first_positions.size(); ++i) {
                  auto& sequence = *response.add_sequences();
                  sequence.mutable_sequence()->set_id(std::to_string(i));
                  sequence.set_positions(1);
                }
                return response;
              },
          .inspect_sequence =
              [=](const v1::SequenceRef& sequence) {
                v1::InspectSequenceResponse response;
                response.set_first_position(first_positions[std::stoul(sequence.id())]);
                return response;
              }};
}

TEST(RunDiagnosisTest, WhatLiesBeforeTheFirstPositionsTakesNoMoreThanItsRoom) {
  const absl::StatusOr<RunDiagnosis> diagnosis = DiagnoseRun(Keeping({1 << 16, 1 << 17, 1 << 16}));
  ASSERT_TRUE(diagnosis.ok()) << diagnosis.status();
  EXPECT_EQ(diagnosis->sequences, (std::vector<std::string>{"0", "2"}));
  const absl::Status none = DiagnoseRun(Keeping({(1 << 17) + 1})).status();
  EXPECT_TRUE(absl::IsNotFound(none)) << none;
  EXPECT_TRUE(absl::StrContains(none.message(), "too far")) << none;
}

constexpr int kPositions = 128, kVocabulary = 40, kSlots = 4;

// One position as it was recorded and evaluated: log-probs of the sampled token and of the slots.
struct Position {
  float recorded = 0;
  float current = 0;
  std::vector<int32_t> ids;
  std::vector<float> recorded_slots, current_slots;
  int64_t staleness = 0;
};

// Of a policy that is `noise` nats per logit from the recorded one. What is recorded is
// renormalised over the `kept` most probable tokens, of which the first kSlots are listed.
std::vector<Position> Sampled(int kept, double noise, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<Position> positions(kPositions);
  for (Position& position : positions) {
    std::vector<double> q(kVocabulary), p(kVocabulary);
    for (double& logit : q) logit = 1.5 * normal(random);
    std::sort(q.rbegin(), q.rend());
    std::ranges::transform(q, p.begin(), [&](double x) { return x + noise * normal(random); });
    const auto log_sum = [](const std::vector<double>& logits, int count) {
      double sum = 0;
      for (int i = 0; i < count; ++i) sum += std::exp(logits[i]);
      return std::log(sum);
    };
    const double q_sum = log_sum(q, kept), p_sum = log_sum(p, kVocabulary);
    std::vector<double> weights(kept);
    for (int i = 0; i < kept; ++i) weights[i] = std::exp(q[i]);
    const int sampled = std::discrete_distribution<int>(weights.begin(), weights.end())(random);
    position.recorded = static_cast<float>(q[sampled] - q_sum);
    position.current = static_cast<float>(p[sampled] - p_sum);
    for (int i = 0; i < kSlots; ++i) {
      // The sampled token is number 0.
      position.ids.push_back((i - sampled + kVocabulary) % kVocabulary);
      position.recorded_slots.push_back(static_cast<float>(q[i] - q_sum));
      position.current_slots.push_back(static_cast<float>(p[i] - p_sum));
    }
  }
  return positions;
}

template <typename T>
void Add(std::string* array, T value) {
  array->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

v1::InspectSequenceResponse Message(const std::vector<Position>& positions) {
  v1::InspectSequenceResponse message;
  message.set_top_k(kSlots);
  for (const Position& position : positions) {
    const float log_ratio = position.current - position.recorded;
    message.mutable_decisions()->push_back(
        static_cast<char>(log_ratio < -0.5 ? v1::REJECTED : v1::ACCEPTED));
    message.mutable_missing_reasons()->push_back('\0');
    Add<int32_t>(message.mutable_sampled_ids(), 0);
    Add(message.mutable_sampled_log_probs(), position.recorded);
    Add(message.mutable_log_ratios(), log_ratio);
    for (std::string* const array :
         {message.mutable_acceptance_probabilities(), message.mutable_log_envelopes(),
          message.mutable_residual_masses()}) {
      Add(array, 0.0f);
    }
    Add<uint32_t>(message.mutable_uniforms(), 0);
    Add(message.mutable_staleness(), position.staleness);
    for (int i = 0; i < kSlots; ++i) {
      Add(message.mutable_top_k_ids(), position.ids[i]);
      Add(message.mutable_top_k_log_probs(), position.recorded_slots[i]);
      Add(message.mutable_current_log_probs(), position.current_slots[i]);
    }
  }
  return message;
}

// Of a run of two sequences; `change` is made to the positions of the second.
Diagnosis Diagnosed(
    int kept, double noise, const v1::Sampling& sampling,
    const std::function<void(std::vector<Position>&)>& change = [](auto&) {}) {
  RunCalls calls = Keeping({0, 0});
  calls.get_run = [=] {
    v1::Run run;
    *run.mutable_sampling() = sampling;
    return run;
  };
  calls.inspect_sequence = [=](const v1::SequenceRef& sequence) {
    std::vector<Position> positions = Sampled(kept, noise, sequence.id() == "0" ? 1 : 2);
    if (sequence.id() == "1") change(positions);
    return Message(positions);
  };
  absl::StatusOr<RunDiagnosis> diagnosis = DiagnoseRun(calls);
  EXPECT_TRUE(diagnosis.ok()) << diagnosis.status();
  return diagnosis.ok() ? diagnosis->tokens : Diagnosis();
}

std::vector<std::string> FaultsOf(const Diagnosis& diagnosis) {
  std::vector<std::string> faults;
  for (const Check& check : diagnosis.checks) {
    if (check.fault()) faults.emplace_back(check.name);
  }
  return faults;
}

v1::Sampling TopP(double top_p) {
  v1::Sampling sampling;
  sampling.set_top_p(top_p);
  return sampling;
}

TEST(RunDiagnosisTest, AFilterOfTheRecordedSamplingIsNamedFirst) {
  // Of more tokens than are recorded, so that no list tells it.
  const Diagnosis unknown = Diagnosed(10, 0.01, v1::Sampling());
  EXPECT_TRUE(unknown.fault || unknown.undecided);
  EXPECT_THAT(absl::StrJoin(unknown.verdict, " "), testing::Not(testing::HasSubstr("filter")));
  const Diagnosis diagnosis = Diagnosed(10, 0.01, TopP(0.8));
  EXPECT_EQ(diagnosis.checks.front().name, "filter");
  EXPECT_EQ(FaultsOf(diagnosis).front(), "filter");
  EXPECT_THAT(diagnosis.verdict.front(), testing::HasSubstr("a filter left (top_p 0.8)"));
  EXPECT_THAT(absl::StrJoin(diagnosis.verdict, " "),
              testing::Not(testing::ContainsRegex("checkpoint|template")));
}

TEST(RunDiagnosisTest, AFilterOnBothSidesIsNoFault) {
  const Diagnosis diagnosis = Diagnosed(kVocabulary, 0.01, TopP(0.8));
  EXPECT_THAT(FaultsOf(diagnosis), testing::IsEmpty());
  EXPECT_FALSE(diagnosis.fault);
  EXPECT_THAT(diagnosis.verdict.front(), testing::HasSubstr("(top_p 0.8), and the current"));
  // Settings that filter nothing are not named.
  v1::Sampling neutral = TopP(1);
  neutral.set_top_k(-1);
  neutral.set_min_p(0);
  EXPECT_EQ(Diagnosed(kVocabulary, 0.01, neutral).verdict,
            Diagnosed(kVocabulary, 0.01, v1::Sampling()).verdict);
}

TEST(RunDiagnosisTest, RangesOfExactZerosArePadding) {
  const auto zeros = [](int first, int last, float current) {
    return [=](std::vector<Position>& positions) {
      for (int i = first; i < last; ++i) {
        positions[i].recorded = 0;
        positions[i].current = current;
        positions[i].ids.assign(kSlots, -1);
      }
    };
  };
  const Diagnosis padded = Diagnosed(kVocabulary, 0.01, {}, zeros(40, 60, -1.5));
  EXPECT_THAT(FaultsOf(padded), testing::ElementsAre("zeros"));
  EXPECT_THAT(padded.verdict.front(),
              testing::HasSubstr("20 recorded log-probs in 1 ranges are exactly 0, the first from "
                                 "position 40 of sequence 1 on"));
  EXPECT_THAT(FaultsOf(Diagnosed(kVocabulary, 0.01, {}, zeros(40, 47, -1.5))),
              testing::Not(testing::Contains("zeros")))
      << "too few in a row";
  EXPECT_THAT(FaultsOf(Diagnosed(kVocabulary, 0.01, {}, zeros(40, 60, -1e-4f))), testing::IsEmpty())
      << "both sides are certain";
}

TEST(RunDiagnosisTest, VersionsAheadOfTheRunsAreAFault) {
  const auto at = [](int64_t staleness) {
    return [=](std::vector<Position>& positions) {
      for (Position& position : positions) position.staleness = staleness;
    };
  };
  const Diagnosis ahead = Diagnosed(kVocabulary, 0.01, {}, at(-9));
  EXPECT_THAT(FaultsOf(ahead), testing::ElementsAre("ahead"));
  EXPECT_THAT(
      ahead.verdict.front(),
      testing::HasSubstr("128 of 256 tokens are of versions newer than the run's, by up to 9"));
  EXPECT_THAT(FaultsOf(Diagnosed(kVocabulary, 0.01, {}, at(9))), testing::IsEmpty());
}

}  // namespace
}  // namespace sis
