#include "server/evaluate/evaluate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "server/testing/evaluate_fixture.h"

namespace sis {
namespace {

TEST_F(EvaluateTest, OverlappingRetriesFromManyThreadsCountEachPositionOnce) {
  constexpr uint32_t kBeyond = kLength + 40;  // of which 40 are missing
  for (CurrentValues& current : current_) {
    current.log_probs.resize(kBeyond * kSlots, -1.0f);
    current.sampled_log_probs.resize(kBeyond, -1.0f);
  }
  const v1::EvaluateResponse whole = Do(Request({{0, 0, kBeyond}, {1, 0, kBeyond}}, 8));
  std::atomic<uint64_t> counted = 0;
  const auto work = [&](uint32_t seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < 150; ++i) {
      std::vector<NamedRange> ranges;
      for (int s = 0; s < 2; ++s) {
        const auto first = static_cast<uint32_t>(random() % kBeyond);
        const auto count = static_cast<uint32_t>(1 + random() % std::min(60u, kBeyond - first));
        ranges.push_back({s, first, count});
      }
      counted += Do(Request(ranges, 9)).newly_counted();
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t seed = 0; seed < 4; ++seed) threads.emplace_back(work, seed);
  for (std::thread& thread : threads) thread.join();
  counted += Do(Request({{0, 0, kBeyond}, {1, 0, kBeyond}}, 9)).newly_counted();
  EXPECT_EQ(counted, 2 * kBeyond);
  const v1::Totals step = Step(9);
  EXPECT_EQ(step.missing(), 80);
  EXPECT_EQ(step.d(), whole.totals().d());
  EXPECT_EQ(step.acceptance_probability(), whole.totals().acceptance_probability());
  EXPECT_EQ(step.accepted() + step.rejected() + step.outside_top_k(), 2 * kLength);
}

// A position that one call masks, another call may count, whichever comes first.
TEST_F(EvaluateTest, TotalsOfAStepDoNotDependOnTheOrderOfMaskedCalls) {
  std::mt19937 random(9);
  std::vector<v1::EvaluateRequest> requests;
  const auto add = [&](const std::vector<NamedRange>& ranges, auto&& kept) {
    v1::EvaluateRequest& request = requests.emplace_back(Request(ranges));
    for (const NamedRange& range : ranges) {
      for (uint32_t i = 0; i < range.count; ++i) request.mutable_mask()->push_back(kept(i) ? 1 : 0);
    }
  };
  add({{0, 10, 3}}, [](uint32_t) { return false; });
  add({{0, 10, 3}}, [](uint32_t) { return true; });
  add({{0, 0, 50}, {1, 20, 90}}, [](uint32_t i) { return i % 20 < 13; });
  add({{1, 0, 200}, {2, 0, 40}}, [&](uint32_t) { return random() % 3 != 0; });
  add({{2, 30, 60}}, [](uint32_t) { return false; });
  std::vector<int> order = {0, 1, 2, 3, 4};
  std::set<std::string> steps;
  for (int permutation = 0; permutation < 120; ++permutation) {
    Cache cache;
    const auto run = cache.CreateRun("r", LosslessConfig(kSlots));
    for (size_t i = 0; i < kIds.size(); ++i) AppendBlock(cache, *run, records_[i].Block(kIds[i]));
    uint64_t newly_counted = 0;
    for (const int i : order) {
      const auto response = EvaluateAtOnce(*run, backend_, requests[i]);
      ASSERT_TRUE(response.ok()) << response.status();
      newly_counted += response->newly_counted();
      const auto again = EvaluateAtOnce(*run, backend_, requests[i]);
      EXPECT_EQ(again->newly_counted(), 0);
    }
    v1::GetStepResponse step = ToMessage(*run->steps().Find(1));
    EXPECT_EQ(step.totals().accepted() + step.totals().rejected() + step.totals().outside_top_k(),
              newly_counted);
    EXPECT_GT(step.totals().masked(), 0);
    step.clear_begun_at();
    step.clear_ended_at();
    steps.insert(step.SerializeAsString());
    std::ranges::next_permutation(order);
  }
  EXPECT_EQ(steps.size(), 1);
}

TEST_F(EvaluateTest, ReturnsOnlyWantedOutputs) {
  v1::EvaluateRequest request = Request({{0, 0, 9}});
  request.clear_outputs();
  v1::EvaluateResponse response = Do(request);
  EXPECT_EQ(response.accept_bits().size(), 2);
  EXPECT_EQ(response.decisions() + response.ratios() + response.log_ratios() +
                response.acceptance_probabilities(),
            "");
  const auto sizes = [&](v1::Output output) {
    request.clear_outputs();
    request.add_outputs(output);
    const v1::EvaluateResponse r = Do(request);
    return std::vector<size_t>{r.accept_bits().size(), r.decisions().size(), r.ratios().size(),
                               r.log_ratios().size(), r.acceptance_probabilities().size()};
  };
  EXPECT_THAT(sizes(v1::OUTPUT_ACCEPT_BITS), testing::ElementsAre(2, 0, 0, 0, 0));
  EXPECT_THAT(sizes(v1::OUTPUT_DECISIONS), testing::ElementsAre(0, 9, 0, 0, 0));
  EXPECT_THAT(sizes(v1::OUTPUT_RATIOS), testing::ElementsAre(0, 0, 36, 0, 0));
  EXPECT_THAT(sizes(v1::OUTPUT_LOG_RATIOS), testing::ElementsAre(0, 0, 0, 36, 0));
  EXPECT_THAT(sizes(v1::OUTPUT_ACCEPTANCE_PROBABILITIES), testing::ElementsAre(0, 0, 0, 0, 36));
}

// Offsets into the log-probs follow from the counts, wherever a range begins.
TEST_F(EvaluateTest, AnswersDoNotDependOnHowARequestIsCut) {
  const v1::EvaluateResponse whole = Do(Request(all_));
  for (const uint32_t length : {1u, 37u, 64u, 199u}) {
    for (uint32_t first = 0; first < kLength; first += length) {
      const uint32_t count = std::min(length, kLength - first);
      const v1::EvaluateResponse part = Do(Request({{1, 0, 3}, {2, first, count}}));
      const size_t at = 2 * kLength + first;
      EXPECT_EQ(part.decisions().substr(3), whole.decisions().substr(at, count));
      EXPECT_EQ(part.acceptance_probabilities().substr(3 * sizeof(float)),
                whole.acceptance_probabilities().substr(at * sizeof(float), count * sizeof(float)));
    }
  }
}

TEST_F(EvaluateTest, CountsMustBeThoseOfTheRecords) {
  const v1::EvaluateRequest request = Request(all_, 5);
  for (const size_t i : {size_t{0}, size_t{65}, size_t{kLength - 1}, size_t{kLength + 3}}) {
    for (const int step : {-1, 1}) {
      v1::EvaluateRequest changed = request;
      v1::Gathered& gathered = *changed.mutable_gathered();
      const int recorded = gathered.counts()[i];
      const int wrong = recorded + step;
      if (wrong < 0 || wrong > kSlots) continue;
      const size_t at = FirstValue(gathered, i) * sizeof(float);
      if (step > 0) gathered.mutable_log_probs()->insert(at, std::string(sizeof(float), '\0'));
      if (step < 0) gathered.mutable_log_probs()->erase(at, sizeof(float));
      (*gathered.mutable_counts())[i] = static_cast<char>(wrong);
      const absl::Status status = Try(changed).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_EQ(
          status.message(),
          absl::StrCat("sequence '", kIds[i / kLength], "' attempt 0: gathered.counts: position ",
                       i % kLength, ": ", wrong, ", but the record has ", recorded, " slots"));
    }
  }
  EXPECT_FALSE(run_->steps().Find(5).has_value()) << "nothing is counted";
}

}  // namespace
}  // namespace sis
