#include "server/cache/step_ledger.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace sis {
namespace {

using Range = StepLedger::Range;

constexpr absl::Time kNow = absl::FromUnixSeconds(1000);

Evaluated Accepted(int64_t count) {
  Evaluated evaluated;
  evaluated.sums.accepted = count;
  return evaluated;
}

std::vector<Range> Fresh(StepLedger& ledger, uint64_t draw, uint64_t sequence_key, Range range) {
  return ledger.Claim(draw, sequence_key, range).fresh;
}

// A position is counted by the first claim that does not mask it, whatever masked it before.
TEST(StepLedgerTest, RandomMaskedClaimsAgreeWithABitmap) {
  std::mt19937 random(4);
  for (int trial = 0; trial < 50; ++trial) {
    ByteBudget budget(INT64_MAX);
    StepLedger ledger(budget);
    constexpr uint32_t kPositions = 120;
    std::vector<bool> counted(kPositions), seen(kPositions);
    int64_t masked = 0;
    for (int i = 0; i < 100; ++i) {
      const uint32_t first = random() % kPositions;
      const uint32_t end = std::min<uint32_t>(kPositions, first + 1 + random() % (2 * trial + 1));
      const uint32_t one_in = 1 + random() % 3;
      std::vector<Range> mask, expected;
      const auto add = [](uint32_t p, std::vector<Range>& ranges) {
        if (ranges.empty() || ranges.back().end != p) ranges.push_back({p, p});
        ++ranges.back().end;
      };
      for (uint32_t p = first; p < end; ++p) {
        seen[p] = true;
        if (random() % one_in != 0) {
          add(p, mask);
        } else if (!counted[p]) {
          add(p, expected);
          counted[p] = true;
        }
      }
      const StepLedger::Claimed claimed = ledger.Claim(7, 1, {first, end}, mask);
      masked += claimed.masked;
      ASSERT_EQ(claimed.fresh, expected) << "trial " << trial << " claim " << i;
      ASSERT_EQ(masked, std::ranges::count(seen, true) - std::ranges::count(counted, true));
      ASSERT_EQ(ledger.Find(7)->sequences, std::ranges::count(counted, true) > 0);
    }
    EXPECT_EQ(Fresh(ledger, 7, 1, {0, kPositions}).empty(), !std::ranges::count(counted, false));
    EXPECT_EQ(budget.used(), StepLedger::kStepBytes + StepLedger::kRangeBytes)
        << "all are one range, and none is masked";
  }
}

// The cost of a claim does not depend on the number of ranges; otherwise this test would time out.
TEST(StepLedgerTest, AsManyRangesOfOneSequenceAsThereMayBe) {
  ByteBudget budget(INT64_MAX);
  StepLedger ledger(budget);
  constexpr auto kMax = static_cast<uint32_t>(StepLedger::kMaxRanges);
  for (uint32_t i = 0; i < kMax; ++i) {
    ASSERT_EQ(Fresh(ledger, 1, 1, {2 * i, 2 * i + 1}).size(), 1) << i;
  }
  EXPECT_EQ(ledger.Claim(1, 1, {2 * kMax, 2 * kMax + 3}).uncounted, 3) << "one range too many";
  EXPECT_EQ(Fresh(ledger, 1, 1, {1, 2}).size(), 1) << "joins two";
  EXPECT_EQ(ledger.Claim(1, 1, {2 * kMax, 2 * kMax + 3}).uncounted, 0);
  EXPECT_EQ(Fresh(ledger, 1, 1, {0, 2 * kMax}).size(), kMax - 1);
  EXPECT_EQ(budget.used(), StepLedger::kStepBytes + 1 * StepLedger::kRangeBytes);
}

TEST(StepLedgerTest, ReportsUncountedPositionsWithoutMemory) {
  ByteBudget budget(StepLedger::kStepBytes + 2 * StepLedger::kRangeBytes);
  StepLedger ledger(budget);
  EXPECT_EQ(ledger.Claim(1, 1, {0, 10}).uncounted, 0);
  EXPECT_EQ(ledger.Claim(1, 1, {20, 30}).uncounted, 0);
  const StepLedger::Claimed claimed = ledger.Claim(1, 2, {5, 12});
  EXPECT_EQ(claimed.uncounted, 7);
  EXPECT_TRUE(claimed.fresh.empty());
  EXPECT_EQ(ledger.Claim(1, 1, {0, 10}).uncounted, 0) << "is counted";
  EXPECT_EQ(ledger.Find(1)->sequences, 1);

  Evaluated evaluated = Accepted(1);
  evaluated.prefix_curve[1].positions = 2;
  evaluated.prefix_curve[8].positions = 3;
  evaluated.observed["a"].positions = 4;
  const StepLedger::Uncounted uncounted{.positions = 7, .prefix_curve = 5, .corrections = 4};
  EXPECT_EQ(ledger.Add(1, evaluated, kNow, 7), uncounted);
  EXPECT_EQ(ledger.Find(1)->uncounted, uncounted);
  ledger.Add(1, evaluated, kNow, 7);
  EXPECT_EQ(ledger.List()[0].uncounted.positions, 14) << "each time";

  // The budget has no room for a second step next to that of another run.
  StepLedger other(budget);
  EXPECT_EQ(other.Claim(1, 1, {0, 10}).uncounted, 10);
  EXPECT_EQ(other.Add(1, Evaluated(), kNow, 10).positions, 10);
}

TEST(StepLedgerTest, AddSumsUp) {
  ByteBudget budget(INT64_MAX);
  StepLedger ledger(budget);
  ledger.Claim(3, 1, {0, 1});
  Evaluated evaluated = Accepted(2);
  evaluated.sums.d = 5;
  evaluated.statistics.abs_log_ratio[3] = 7;
  evaluated.ages[1].rejected = 9;
  evaluated.observed["tis"].weight = 11;
  evaluated.missing[2] = 13;
  evaluated.prefix_curve[4] = {.positions = 15, .residual_mass = 17};
  ledger.Add(3, evaluated, kNow);
  ledger.Add(3, evaluated, kNow);
  EXPECT_EQ(ledger.Find(3)->evaluated.sums.accepted, 4);
  EXPECT_EQ(ledger.Find(3)->evaluated.sums.d, 10);
  EXPECT_EQ(ledger.Find(3)->evaluated.statistics.abs_log_ratio[3], 14);
  EXPECT_EQ(ledger.Find(3)->evaluated.ages[1].rejected, 18);
  EXPECT_EQ(ledger.Find(3)->evaluated.observed.at("tis").weight, 22);
  EXPECT_EQ(ledger.Find(3)->evaluated.missing[2], 26);
  EXPECT_EQ(ledger.Find(3)->evaluated.prefix_curve.at(4).positions, 30);
  EXPECT_EQ(ledger.Find(3)->evaluated.prefix_curve.at(4).residual_mass, 34);
  ledger.Add(4, evaluated, kNow);  // nothing was claimed there
  EXPECT_FALSE(ledger.Find(4).has_value());
}

// Counts positions [0, end) of one sequence.
void Count(StepLedger& ledger, uint64_t draw, uint32_t end = 1) {
  int64_t fresh = 0;
  for (const Range& range : Fresh(ledger, draw, 1, {0, end})) fresh += range.end - range.first;
  ledger.Add(draw, Accepted(fresh), kNow + absl::Seconds(draw));
}

std::vector<uint64_t> DrawsOf(const std::vector<StepLedger::Step>& steps) {
  std::vector<uint64_t> draws;
  for (const StepLedger::Step& step : steps) draws.push_back(step.draw);
  return draws;
}

TEST(StepLedgerTest, KeepsSumsAndClaimsOfTheDrawsThatBeganLast) {
  ByteBudget budget(INT64_MAX);
  {
    StepLedger ledger(budget, {.sums = 4, .claims = 2});
    EXPECT_FALSE(ledger.last_draw().has_value());
    for (const uint64_t draw : {10, 5, 7}) Count(ledger, draw);
    EXPECT_EQ(ledger.last_draw(), 7) << "the last, not the largest";
    Count(ledger, 5, 3);
    EXPECT_EQ(ledger.last_draw(), 7) << "draw 5 has begun before";
    EXPECT_EQ(DrawsOf(ledger.List()), (std::vector<uint64_t>{10, 5, 7}));
    EXPECT_EQ(ledger.Find(5)->evaluated.sums.accepted, 3) << "each position once";
    EXPECT_EQ(ledger.Find(5)->sequences, 1);
    EXPECT_EQ(budget.used(), 3 * StepLedger::kStepBytes + 2 * StepLedger::kRangeBytes);
    Count(ledger, 10, 2);
    EXPECT_EQ(ledger.Find(10)->evaluated.sums.accepted, 2) << "from zero";
    EXPECT_EQ(DrawsOf(ledger.List()), (std::vector<uint64_t>{5, 7, 10})) << "as the newest";
    for (const uint64_t draw : {11, 12}) Count(ledger, draw);
    EXPECT_EQ(DrawsOf(ledger.List()), (std::vector<uint64_t>{7, 10, 11, 12}));
    EXPECT_FALSE(ledger.Find(5).has_value());
    EXPECT_EQ(ledger.Find(7)->evaluated.sums.accepted, 1);
    int64_t accepted = 0, steps = 0;
    ledger.ForEach([&](const Evaluated& evaluated) {
      accepted += evaluated.sums.accepted;
      ++steps;
    });
    EXPECT_EQ(accepted, 2);
    EXPECT_EQ(steps, 2) << "as many as have claims";
  }
  EXPECT_EQ(budget.used(), 0);
}

// A run that goes back to a checkpoint has smaller draws than before.
TEST(StepLedgerTest, CountsAnyDrawWhateverTheEarlierOnes) {
  ByteBudget budget(INT64_MAX);
  StepLedger ledger(budget);
  for (const uint64_t from : {uint64_t{1000}, uint64_t{0}, UINT64_MAX - 200, uint64_t{7}}) {
    for (uint64_t draw = from; draw < from + 2 * StepLedger::kClaimsKept; ++draw) {
      ASSERT_EQ(Fresh(ledger, draw, 1, {0, 1}).size(), 1) << draw;
      ASSERT_TRUE(ledger.Find(draw).has_value()) << draw;
      ASSERT_EQ(ledger.last_draw(), draw);
    }
  }
}

TEST(StepLedgerTest, ListsPagesInTheOrderInWhichDrawsBegan) {
  ByteBudget budget(INT64_MAX);
  StepLedger ledger(budget);
  EXPECT_TRUE(ledger.List().empty());
  for (const uint64_t draw : {3, 1, 4, 5, 9, 2, 6}) Count(ledger, draw);
  ledger.Claim(8, 1, {0, 1});  // nothing is added
  EXPECT_EQ(DrawsOf(ledger.List()), (std::vector<uint64_t>{3, 1, 4, 5, 9, 2, 6}));
  EXPECT_EQ(DrawsOf(ledger.List(std::nullopt, 2)), (std::vector<uint64_t>{3, 1}));
  EXPECT_EQ(DrawsOf(ledger.List(4, 2)), (std::vector<uint64_t>{5, 9}));
  EXPECT_EQ(DrawsOf(ledger.List(9)), (std::vector<uint64_t>{2, 6}));
  EXPECT_EQ(ledger.List(6).size(), 0);
  EXPECT_EQ(ledger.List(7).size(), 7) << "draw 7 is not kept";
  const StepLedger::Step step = ledger.List(1, 1)[0];
  EXPECT_EQ(step.begun, kNow + absl::Seconds(4));
  EXPECT_EQ(step.ended, kNow + absl::Seconds(4));
  EXPECT_EQ(step.evaluated.sums.accepted, 1);
}

TEST(StepLedgerTest, KeptStepsAreCharged) {
  constexpr int64_t kStep = StepLedger::kStepBytes;
  constexpr int64_t kRange = StepLedger::kRangeBytes;
  // Room for two steps, if the second holds no more than the first leaves.
  constexpr int64_t kRanges = 28;
  static_assert(kStep == 20 * kRange);
  ByteBudget budget(kStep + kRanges * kRange);
  {
    StepLedger ledger(budget);
    for (uint64_t key = 0; key < 6; ++key) EXPECT_EQ(Fresh(ledger, 1, key, {0, 1}).size(), 1);
    EXPECT_EQ(budget.used(), kStep + 6 * kRange);
    EXPECT_EQ(Fresh(ledger, 1, 0, {2, 3}).size(), 1) << "another range";
    EXPECT_EQ(budget.used(), kStep + 7 * kRange);
    EXPECT_EQ(Fresh(ledger, 1, 0, {1, 2}).size(), 1) << "which makes one of two";
    EXPECT_EQ(budget.used(), kStep + 6 * kRange);

    for (uint64_t key = 0; key < 2; ++key) EXPECT_EQ(Fresh(ledger, 2, key, {0, 1}).size(), 1);
    EXPECT_EQ(Fresh(ledger, 2, 2, {0, 1}).size(), 1);
    EXPECT_EQ(budget.used(), 2 * kStep + 3 * kRange) << "the claims of draw 1 are dropped";
    EXPECT_EQ(ledger.Find(1)->sequences, 6) << "but not its sums";
    EXPECT_EQ(ledger.Claim(1, 7, {0, 5}).uncounted, 5) << "which grow no further";
    for (uint64_t key = 3; key < 9; ++key) EXPECT_EQ(Fresh(ledger, 2, key, {0, 1}).size(), 1);
    EXPECT_FALSE(ledger.Find(1).has_value()) << "dropped to make room";
    for (uint64_t key = 9; key < kRanges; ++key) EXPECT_EQ(Fresh(ledger, 2, key, {0, 1}).size(), 1);
    EXPECT_EQ(Fresh(ledger, 2, kRanges, {0, 1}).size(), 0) << "nothing else to drop";
    EXPECT_EQ(ledger.Find(2)->sequences, kRanges);
    EXPECT_EQ(Fresh(ledger, 2, 0, {0, 2}).size(), 1) << "needs no more memory";

    // Other ledgers of the same budget get only the remaining bytes.
    StepLedger other(budget);
    EXPECT_EQ(Fresh(other, 1, 1, {0, 1}).size(), 0);
    EXPECT_FALSE(other.Find(1).has_value());
    EXPECT_FALSE(other.last_draw().has_value());
  }
  EXPECT_EQ(budget.used(), 0);
}

TEST(StepLedgerTest, OldSumsLeaveHalfOfTheBudgetToOthers) {
  constexpr int64_t kClaimed = StepLedger::kStepBytes + StepLedger::kRangeBytes;
  ByteBudget budget(100 * StepLedger::kStepBytes);
  StepLedger ledger(budget, {.sums = 4096, .claims = 4});
  for (uint64_t draw = 0; draw < 200; ++draw) {
    Count(ledger, draw);
    ASSERT_LE(budget.used(), budget.limit() / 2 + kClaimed);
  }
  EXPECT_GT(ledger.List().size(), 45);
  StepLedger other(budget, {.sums = 4096, .claims = 4});
  for (uint64_t draw = 0; draw < 200; ++draw) {
    Count(other, draw);
    Count(ledger, 200 + draw);
  }
  EXPECT_GE(other.List().size(), 4);
  EXPECT_GE(ledger.List().size(), 4);
  EXPECT_LE(budget.used(), budget.limit() / 2 + 2 * kClaimed);
}

// With room for one observed correction and two points of the prefix curve.
TEST(StepLedgerTest, CorrectionsAndPointsOfThePrefixCurveAreChargedOnce) {
  ByteBudget budget(StepLedger::kStepBytes + StepLedger::kRangeBytes + StepLedger::kObservedBytes +
                    2 * StepLedger::kPrefixPointBytes);
  {
    StepLedger ledger(budget);
    ledger.Claim(1, 1, {0, 1});
    Evaluated evaluated = Accepted(1);
    evaluated.observed["a"].positions = 1;
    for (const int k : {1, 8}) evaluated.prefix_curve[k].positions = 1;
    ledger.Add(1, evaluated, kNow);
    ledger.Add(1, evaluated, kNow);
    EXPECT_EQ(budget.used(), budget.limit());
    evaluated.observed["b"].positions = 1;
    evaluated.prefix_curve[4].positions = 1;
    ledger.Add(1, evaluated, kNow);
    const Evaluated counted = ledger.Find(1)->evaluated;
    EXPECT_EQ(counted.sums.accepted, 3) << "the rest is counted";
    EXPECT_EQ(counted.observed.at("a").positions, 3);
    EXPECT_EQ(counted.prefix_curve.at(8).positions, 3);
    EXPECT_FALSE(counted.observed.contains("b")) << "there is no room";
    EXPECT_FALSE(counted.prefix_curve.contains(4));
    EXPECT_EQ(budget.used(), budget.limit());
  }
  EXPECT_EQ(budget.used(), 0);
}

TEST(StepLedgerTest, RestoredStepsComeBeforeTheOthers) {
  ByteBudget budget(INT64_MAX);
  std::vector<StepLedger::Step> stored;
  {
    StepLedger ledger(budget);
    EXPECT_EQ(ledger.additions(), 0);
    for (uint64_t draw = 0; draw < 100; ++draw) Count(ledger, draw);
    EXPECT_EQ(ledger.additions(), 100);
    EXPECT_EQ(DrawsOf(ledger.AddedSince(98)), (std::vector<uint64_t>{98, 99}));
    Count(ledger, 70, 2);
    EXPECT_EQ(DrawsOf(ledger.AddedSince(98)), (std::vector<uint64_t>{70, 98, 99}));
    stored = ledger.AddedSince(0);
    EXPECT_EQ(stored.size(), 100);
  }
  // An old slot, from before draw 99 was counted again from zero.
  stored.push_back(stored.back());
  stored.back().number = 0;
  stored.back().evaluated = Accepted(1000);
  std::ranges::shuffle(stored, std::mt19937(1));

  StepLedger ledger(budget);
  ledger.Restore(stored);
  EXPECT_EQ(budget.used(), 100 * StepLedger::kStepBytes);
  EXPECT_EQ(ledger.additions(), 0);
  EXPECT_TRUE(ledger.AddedSince(0).empty()) << "all are stored";
  EXPECT_EQ(ledger.last_draw(), 99);
  EXPECT_EQ(ledger.Find(70)->evaluated.sums.accepted, 2);
  EXPECT_EQ(ledger.Find(99)->evaluated.sums.accepted, 1);
  const uint64_t last = ledger.Find(99)->number;
  // A trainer that resumes from a checkpoint.
  for (uint64_t draw = 98; draw < 102; ++draw) Count(ledger, draw, 3);
  EXPECT_EQ(DrawsOf(ledger.List(97)), (std::vector<uint64_t>{98, 99, 100, 101}));
  EXPECT_EQ(ledger.Find(99)->evaluated.sums.accepted, 3) << "from zero";
  EXPECT_EQ(ledger.Find(98)->number, last + 1);
  EXPECT_EQ(DrawsOf(ledger.AddedSince(0)), (std::vector<uint64_t>{98, 99, 100, 101}));
}

TEST(StepLedgerTest, RestoredStepsLeaveHalfOfTheBudget) {
  std::vector<StepLedger::Step> stored;
  for (uint64_t draw = 0; draw < 200; ++draw) stored.push_back({.draw = draw, .number = draw});
  for (const int64_t room : {0, 10, 400, 1000}) {
    ByteBudget budget(room * StepLedger::kStepBytes);
    {
      StepLedger ledger(budget);
      ledger.Restore(stored);
      EXPECT_LE(budget.used(), budget.limit() / 2 + StepLedger::kStepBytes);
      EXPECT_EQ(ledger.Find(199).has_value(), room > 0) << "the newest are restored";
      EXPECT_EQ(ledger.Find(0).has_value(), room >= 400);
    }
    EXPECT_EQ(budget.used(), 0);
  }
}

TEST(StepLedgerTest, RangesOfAllStepsTogetherAreBounded) {
  ByteBudget budget(INT64_MAX);
  StepLedger ledger(budget);
  const auto fill = [&](uint64_t draw, int64_t ranges) {
    int64_t claimed = 0;
    for (int64_t key = 0; key < ranges; ++key) claimed += Fresh(ledger, draw, key, {0, 1}).size();
    return claimed;
  };
  constexpr int64_t kMax = StepLedger::kMaxRanges;
  EXPECT_EQ(fill(1, kMax / 2), kMax / 2);
  EXPECT_EQ(fill(2, kMax / 2), kMax / 2);
  EXPECT_TRUE(ledger.Find(1).has_value());
  EXPECT_EQ(fill(3, 1), 1);
  EXPECT_EQ(ledger.Claim(1, kMax, {0, 1}).uncounted, 1) << "its claims made room";
  EXPECT_EQ(ledger.Find(2)->sequences, kMax / 2);
  EXPECT_EQ(fill(3, kMax + 1), kMax - 1) << "one was there, one is too many";
  EXPECT_EQ(ledger.Claim(2, kMax, {0, 1}).uncounted, 1);
  // Merging ranges frees room.
  EXPECT_EQ(Fresh(ledger, 4, 1, {0, 1}).size(), 1);
  EXPECT_EQ(Fresh(ledger, 4, 1, {2, 3}).size(), 1);
  EXPECT_EQ(Fresh(ledger, 4, 1, {0, 3}), (std::vector<Range>{{1, 2}}));
}

}  // namespace
}  // namespace sis
