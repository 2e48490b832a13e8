#include "server/cache/step_history.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace sis {
namespace {

constexpr double kHalfOfThem = StepHistory::kMostStretches / 2;

// The most draws that a stretch of this age may have after so many draws, if it has more than one:
// of `half` pairs of neighbours that are all larger beside their age than r, the last one's age
// would be more than F (1 + r)^half.
double MostDraws(double age, double draws) {
  const double full = StepHistory::kFullDraws;
  return age * (std::pow((draws + full) / full, 1 / kHalfOfThem) - 1);
}

DrawStretch RandomDraw(std::mt19937_64& random, uint64_t draw) {
  const auto count = [&] { return static_cast<int64_t>(random() % 1000); };
  DrawStretch stretch{.first_draw = draw, .last_draw = draw, .draws = 1};
  stretch.begun = absl::FromUnixSeconds(static_cast<int64_t>(draw));
  stretch.ended = stretch.begun + absl::Milliseconds(count());
  stretch.sequences = count();
  stretch.sums = LongSums(Sums{
      .accepted = count(), .rejected = count(), .missing = count(), .d = count(), .k3 = count()});
  stretch.missing[2] = count();
  stretch.plain += CorrectionSums{.positions = count(), .weight = count()};
  stretch.clipped += CorrectionSums{.zeroed = count()};
  stretch.applied += CorrectionSums{.weight_squared = count()};
  stretch.uncounted = count();
  return stretch;
}

void ExpectSameSums(const DrawStretch& a, const DrawStretch& b) {
  EXPECT_EQ(a.draws, b.draws);
  EXPECT_EQ(a.begun, b.begun);
  EXPECT_EQ(a.ended, b.ended);
  EXPECT_EQ(a.sequences, b.sequences);
  EXPECT_EQ(a.sums, b.sums);
  EXPECT_EQ(a.missing, b.missing);
  EXPECT_EQ(a.plain, b.plain);
  EXPECT_EQ(a.clipped, b.clipped);
  EXPECT_EQ(a.applied, b.applied);
  EXPECT_EQ(a.uncounted, b.uncounted);
}

// Each stretch holds exactly what its draws held: nothing is lost, and nothing counted twice.
TEST(StepHistoryTest, AStretchIsTheSumOfItsDraws) {
  std::mt19937_64 random(7);
  StepHistory history;
  std::vector<DrawStretch> draws;
  for (uint64_t draw = 0; draw < 3000; ++draw) {
    draws.push_back(RandomDraw(random, draw));
    history.Add(draws.back());
    if (draw % 500 == 3) {
      EXPECT_TRUE(history.Thin());
    }
  }
  uint64_t next = 0;
  for (const DrawStretch& stretch : history.stretches()) {
    ASSERT_EQ(stretch.first_draw, next) << "from the very first one on, without a gap";
    DrawStretch sum = draws[next++];
    while (next <= stretch.last_draw) sum += draws[next++];
    ExpectSameSums(stretch, sum);
  }
  EXPECT_EQ(next, draws.size());
}

TEST(StepHistoryTest, ItIsBoundedAndAsFineAsItsLawSays) {
  StepHistory history;
  int64_t draws = 0;
  for (int64_t next_look = 1; draws < 300'000;) {
    const auto draw = static_cast<uint64_t>(draws);
    history.Add({.first_draw = draw, .last_draw = draw, .draws = 1});
    if (++draws < next_look) continue;
    next_look += 1 + draws / 7;
    const auto& stretches = history.stretches();
    ASSERT_LE(stretches.size(), StepHistory::kMostStretches);
    if (draws >= static_cast<int64_t>(StepHistory::kMostStretches)) {
      EXPECT_EQ(stretches.size(), StepHistory::kMostStretches) << "no coarser than need be";
    }
    EXPECT_LE(history.bytes(), 256 * 544);
    EXPECT_EQ(stretches.front().first_draw, 0);
    int64_t age = StepHistory::kFullDraws;
    for (auto stretch = stretches.rbegin(); stretch != stretches.rend(); ++stretch) {
      if (stretch->draws > 1) {
        EXPECT_LE(static_cast<double>(stretch->draws),
                  MostDraws(static_cast<double>(age), static_cast<double>(draws)))
            << "age " << age << " after " << draws;
      }
      age += stretch->draws;
    }
    EXPECT_EQ(age, draws + StepHistory::kFullDraws);
  }
}

// More than the fixed point of one draw can hold.
TEST(StepHistoryTest, SumsDoNotOutgrowTheirNumbers) {
  StepHistory history;
  constexpr int64_t kPositions = int64_t{1} << 24;
  const Sums far{.accepted = kPositions, .d = kPositions * Fixed(64)};
  for (uint64_t draw = 0; draw < 2000; ++draw) {
    history.Add({.first_draw = draw, .last_draw = draw, .draws = 1, .sums = LongSums(far)});
  }
  while (history.Thin()) continue;
  EXPECT_EQ(history.stretches().front().sums.accepted, 2000 * kPositions);
  EXPECT_EQ(history.stretches().front().sums.d, 64.0 * 2000 * kPositions);
}

TEST(StepHistoryTest, ThinsToOneStretchThatCostsNothing) {
  StepHistory history;
  EXPECT_FALSE(history.Thin());
  std::mt19937_64 random(7);
  DrawStretch all;
  for (uint64_t draw = 0; draw < 100; ++draw) {
    const DrawStretch stretch = RandomDraw(random, draw);
    all += stretch;
    history.Add(stretch);
  }
  for (int64_t left = 99; left > 0; --left) {
    EXPECT_EQ(history.bytes(), left * StepHistory::kStretchBytes);
    EXPECT_TRUE(history.Thin());
  }
  EXPECT_FALSE(history.Thin());
  EXPECT_EQ(history.bytes(), 0);
  EXPECT_EQ(history.stretches().front().first_draw, 0);
  EXPECT_EQ(history.stretches().front().last_draw, 99);
  ExpectSameSums(history.stretches().front(), all);
}

}  // namespace
}  // namespace sis
