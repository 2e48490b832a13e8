#include "server/observe/verdict.h"

#include <gtest/gtest.h>

#include <functional>

namespace sis {
namespace {

constexpr double kTokens = 10000;
const absl::Time kNow = absl::FromUnixSeconds(1'000'000'000);

// Returns the numbers of a typical run: fresh and stale tokens, a draw every two minutes.
RunNumbers Healthy() {
  RunNumbers numbers;
  numbers.last = {.scored = kTokens,
                  .accepted = 0.85 * kTokens,
                  .d = 0.08 * kTokens,
                  .d_sis = 0.03 * kTokens,
                  .residual_mass = 0.03 * kTokens,
                  .fresh = kTokens / 2,
                  .fresh_d = 0.05 * kTokens / 2,
                  .weight = kTokens,
                  .weight_squared = 1.1 * kTokens};
  numbers.before = numbers.last;
  numbers.events.appends = {.last = kNow - absl::Seconds(50), .longest_pause = absl::Minutes(2)};
  numbers.events.reads = {.last = kNow - absl::Seconds(5), .longest_pause = absl::Minutes(2)};
  numbers.events.turns = 10;
  numbers.events.open_appends = 3;
  numbers.events.evaluations.count = 64;
  numbers.now = kNow;
  return numbers;
}

std::vector<RuleId> Found(const RunNumbers& numbers) {
  std::vector<RuleId> ids;
  for (const Finding& finding : FindingsIn(numbers)) ids.push_back(finding.id);
  return ids;
}

TEST(VerdictTest, ARunLikeManyIsHealthy) {
  EXPECT_EQ(Found(Healthy()), std::vector<RuleId>());
  EXPECT_EQ(VerdictOf({}), Verdict::kHealthy);
  EXPECT_EQ(Found(RunNumbers()), std::vector<RuleId>()) << "nothing was done yet";
}

struct Case {
  RuleId id;
  // Sets the value to the threshold, where there is no finding yet; `beyond` goes past it.
  std::function<void(RunNumbers& numbers)> at;
  std::function<void(RunNumbers& numbers)> beyond;
  const char* reason;
};

double& ByReason(RunNumbers& numbers, MissingReason reason) {
  return numbers.last.missing_by_reason[static_cast<size_t>(reason)];
}

void Lose(RunNumbers& numbers, MissingReason reason, double tokens) {
  numbers.last.scored -= tokens;
  numbers.last.accepted -= tokens;
  numbers.last.missing += tokens;
  ByReason(numbers, reason) += tokens;
}

const Case kCases[] = {
    {RuleId::kCorruptRecords, [](auto&) {}, [](auto& n) { Lose(n, MissingReason::kCorrupt, 1); },
     "Recorded blocks changed by themselves: 0.01% of the tokens."},
    {RuleId::kEvaluationsRefused, [](auto& n) { n.events.evaluations.refused = 0b111; },
     [](auto& n) {
       n.events.evaluations.refused = 0b1111;
       n.events.evaluations.code = absl::StatusCode::kFailedPrecondition;
     },
     "4 of the last 64 evaluations failed (FAILED_PRECONDITION)."},
    {RuleId::kEnvelopeViolations, [](auto& n) { n.last.envelope_violations = 10; },
     [](auto& n) { n.last.envelope_violations = 11; },
     "0.11% of the tokens exceed their own envelope."},
    {RuleId::kFreshTokensDiffer, [](auto& n) { n.last.fresh_d = 0.09 * n.last.fresh; },
     [](auto& n) { n.last.fresh_d = 0.0901 * n.last.fresh; },
     "D is 0.0901 nats per token at staleness 0 already."},
    {RuleId::kStaleTokensDiffer, [](auto& n) { n.last.d = n.last.fresh_d + 0.5 * n.last.fresh; },
     [](auto& n) { n.last.d = n.last.fresh_d + 0.51 * n.last.fresh; },
     "D grows with staleness, from 0.05 nats per token at 0 to 0.51 nats per token beyond."},
    {RuleId::kTrainerStopped,
     [](auto& n) {
       n.events.reads.last = kNow - absl::Minutes(4);
       n.events.appends.last = kNow - absl::Minutes(3);
     },
     [](auto& n) {
       n.events.reads.last = kNow - absl::Seconds(241);
       n.events.appends.last = kNow - absl::Minutes(3);
     },
     "Nothing was read for 4m1s, though tokens were recorded since."},
    {RuleId::kIngestStalled, [](auto& n) { n.events.appends.last = kNow - absl::Minutes(4); },
     [](auto& n) { n.events.appends.last = kNow - absl::Seconds(241); },
     "Nothing was recorded for 4m1s."},
    {RuleId::kEntriesRefused,
     [](auto& n) {
       n.events.refused_entries = {7, kNow - absl::Seconds(901), absl::StatusCode::kAlreadyExists};
     },
     [](auto& n) {
       n.events.refused_entries = {7, kNow - absl::Minutes(15), absl::StatusCode::kAlreadyExists};
     },
     "Append refused 7 entries, the last 15m ago (ALREADY_EXISTS)."},
    {RuleId::kEvictedUnread,
     [](auto& n) {
       n.events.evicted_unread = {2, kNow - absl::Seconds(901)};
     },
     [](auto& n) {
       n.events.evicted_unread = {2, kNow - absl::Seconds(3)};
     },
     "2 sequences were evicted before a trainer read them, the last 3s ago."},
    {RuleId::kUnusableLogProbs,
     [](auto& n) {
       Lose(n, MissingReason::kInvalidLogProb, 5);
       Lose(n, MissingReason::kNoLogProb, 3);
       Lose(n, MissingReason::kInfiniteLogProb, 2);
     },
     [](auto& n) {
       Lose(n, MissingReason::kInvalidLogProb, 5);
       Lose(n, MissingReason::kNoLogProb, 203);
       Lose(n, MissingReason::kInfiniteLogProb, 3);
     },
     "The engine gave 2.11% of the tokens no usable log-prob (invalid 0.05%, none 2.03%, infinite "
     "0.03%)."},
    {RuleId::kUnknownVersion, [](auto&) {},
     [](auto& n) { Lose(n, MissingReason::kUnknownVersion, 1); },
     "0.01% of the tokens are of weights that the trainer did not announce."},
    {RuleId::kMissingTokens,
     [](auto& n) {
       Lose(n, MissingReason::kEvicted, 100);
       Lose(n, MissingReason::kNeverArrived, 100);
     },
     [](auto& n) {
       Lose(n, MissingReason::kNeverArrived, 101);
       Lose(n, MissingReason::kEvicted, 1);
       Lose(n, MissingReason::kStoreDown, 200);
     },
     "Tokens are missing: 1.01% never arrived, 2% store down."},
    {RuleId::kResidualMassHigh, [](auto& n) { n.last.residual_mass = 0.2 * kTokens; },
     [](auto& n) { n.last.residual_mass = 0.21 * kTokens; },
     "21% of the current policy lie outside the recorded slots."},
    {RuleId::kAcceptRateCollapsing,
     [](auto& n) {
       n.before.accepted = 0.8 * kTokens;
       n.last.accepted = 0.601 * kTokens;
     },
     [](auto& n) {
       n.before.accepted = 0.8 * kTokens;
       n.last.accepted = 0.59 * kTokens;
     },
     "The accept rate fell from 80% to 59%."},
    {RuleId::kAcceptRateLow, [](auto& n) { n.before.accepted = n.last.accepted = 0.5 * kTokens; },
     [](auto& n) { n.before.accepted = n.last.accepted = 0.49 * kTokens; },
     "49% of the tokens are accepted."},
    {RuleId::kEffectiveSampleSizeLow,
     [](auto& n) { n.last.weight_squared = n.last.weight * n.last.weight / (0.3 * kTokens) - 1; },
     [](auto& n) { n.last.weight_squared = n.last.weight * n.last.weight / (0.25 * kTokens); },
     "The weights in use are worth 25% of the tokens."},
    {RuleId::kDSisNearD, [](auto& n) { n.last.d_sis = 0.9 * n.last.d; },
     [](auto& n) { n.last.d_sis = 0.95 * n.last.d; }, "D_SIS is 95% of D."},
    {RuleId::kCacheNearLimit, [](auto& n) { n.fullness = 0.9; }, [](auto& n) { n.fullness = 0.91; },
     "The run's quota or the cache is 91% full."},
};

TEST(VerdictTest, OnlyValuesBeyondTheirThresholdAreFindings) {
  for (const Case& each : kCases) {
    SCOPED_TRACE(kRules[static_cast<size_t>(each.id)].name);
    RunNumbers numbers = Healthy();
    each.at(numbers);
    EXPECT_EQ(Found(numbers), std::vector<RuleId>());
    numbers = Healthy();
    each.beyond(numbers);
    const std::vector<Finding> findings = FindingsIn(numbers);
    ASSERT_EQ(Found(numbers), std::vector<RuleId>{each.id});
    EXPECT_EQ(findings.front().reason, each.reason);
    EXPECT_EQ(VerdictOf(findings), findings.front().rule().verdict);
  }
  EXPECT_EQ(std::size(kCases) + 1, kRules.size()) << "all but the next test's";
}

TEST(VerdictTest, TheWorstIsFirst) {
  RunNumbers numbers = Healthy();
  numbers.last.d = 1 * kTokens;
  EXPECT_EQ(Found(numbers), std::vector<RuleId>{RuleId::kStaleTokensDiffer});
  numbers.last.d = 1.01 * kTokens;
  numbers.last.fresh_d = numbers.last.d / 2;
  numbers.last.accepted = 0.016 * kTokens;
  EXPECT_EQ(Found(numbers),
            (std::vector<RuleId>{RuleId::kEnginesDiffer, RuleId::kFreshTokensDiffer,
                                 RuleId::kAcceptRateCollapsing, RuleId::kAcceptRateLow}));
  EXPECT_EQ(VerdictOf(FindingsIn(numbers)), Verdict::kBroken);
  EXPECT_TRUE(std::ranges::is_sorted(kRules, std::greater<>(), &Rule::verdict));
}

TEST(VerdictTest, AgeExplainsDeviationsThatFreshTokensHaveFarLess) {
  const auto found = [](double fresh_d, double stale_d) {
    RunNumbers numbers = Healthy();
    numbers.last.fresh_d = fresh_d * numbers.last.fresh;
    numbers.last.d = numbers.last.fresh_d + stale_d * (kTokens - numbers.last.fresh);
    numbers.last.d_sis = 0;
    return Found(numbers);
  };
  EXPECT_EQ(found(0.12, 1.8), std::vector<RuleId>{RuleId::kStaleTokensDiffer});
  EXPECT_EQ(found(0.15, 1.8), std::vector<RuleId>{RuleId::kFreshTokensDiffer});
  EXPECT_EQ(found(0.12, 0.4), std::vector<RuleId>{RuleId::kFreshTokensDiffer});
  EXPECT_EQ(found(0.12, 2),
            (std::vector<RuleId>{RuleId::kEnginesDiffer, RuleId::kStaleTokensDiffer}));
}

TEST(VerdictTest, FewTokensProveNothing) {
  RunNumbers numbers = Healthy();
  numbers.last = {.scored = kMinTokens - 1, .d = 20.0 * kMinTokens};
  EXPECT_EQ(Found(numbers), std::vector<RuleId>());
  ++numbers.last.scored;
  EXPECT_EQ(VerdictOf(FindingsIn(numbers)), Verdict::kBroken);

  numbers = Healthy();
  numbers.before.scored = kMinTokens - 1;
  numbers.before.accepted = numbers.before.scored;
  numbers.last.accepted = 0.6 * kTokens;
  EXPECT_EQ(Found(numbers), std::vector<RuleId>()) << "no past to have fallen from";

  numbers = Healthy();
  numbers.last.fresh = kMinTokens - 1;
  numbers.last.fresh_d = numbers.last.fresh;
  EXPECT_EQ(Found(numbers), std::vector<RuleId>()) << "too few fresh tokens";

  numbers = Healthy();
  numbers.last.d = 0.009 * kTokens;
  numbers.last.d_sis = numbers.last.d;
  numbers.last.fresh_d = 0;
  EXPECT_EQ(Found(numbers), std::vector<RuleId>()) << "D is too small to be near to";
}

TEST(VerdictTest, PausesAreJudgedByEarlierPauses) {
  const auto stopped = [](absl::Duration longest, int64_t turns, absl::Duration passed) {
    RunNumbers numbers = Healthy();
    numbers.events.turns = turns;
    numbers.events.open_appends = 0;
    numbers.events.reads = {.last = kNow - passed, .longest_pause = longest};
    numbers.events.appends.last = kNow - passed + absl::Seconds(1);
    return Found(numbers) == std::vector<RuleId>{RuleId::kTrainerStopped};
  };
  EXPECT_FALSE(stopped(absl::Seconds(1), 2, absl::Minutes(1))) << "never sooner";
  EXPECT_TRUE(stopped(absl::Seconds(1), 2, absl::Seconds(61)));
  EXPECT_FALSE(stopped(absl::Minutes(5), 2, absl::Minutes(10)));
  EXPECT_TRUE(stopped(absl::Minutes(5), 2, absl::Seconds(601)));
  EXPECT_FALSE(stopped(absl::Hours(1), 2, absl::Minutes(15)));
  EXPECT_TRUE(stopped(absl::Hours(1), 2, absl::Seconds(901))) << "never later";
  EXPECT_FALSE(stopped(absl::Seconds(1), 1, absl::Minutes(15))) << "pauses are not known yet";
  EXPECT_TRUE(stopped(absl::Seconds(1), 1, absl::Seconds(901)));

  RunNumbers ended = Healthy();
  ended.events.appends.last = kNow - absl::Hours(2);
  ended.events.reads.last = kNow - absl::Hours(1);
  ended.events.open_appends = 0;
  EXPECT_EQ(Found(ended), std::vector<RuleId>()) << "all was read, and nobody is there";
}

TEST(RecentEventsTest, KnowPausesTurnsAndOutcomes) {
  RecentEvents recent;
  recent.NoteAppend(kNow);
  recent.NoteAppend(kNow + absl::Seconds(3));
  recent.NoteRead(kNow + absl::Seconds(10));
  recent.NoteRead(kNow + absl::Seconds(11));
  recent.NoteAppend(kNow + absl::Seconds(12));
  RecentEvents::Events events = recent.events();
  EXPECT_EQ(events.turns, 1);
  EXPECT_EQ(events.reads.longest_pause, absl::Seconds(10)) << "waited for since the first append";
  EXPECT_EQ(events.appends.longest_pause, absl::Seconds(9));
  EXPECT_EQ(events.open_appends, 0);
  {
    const auto stream = recent.OpenAppend();
    const auto another = recent.OpenAppend();
    EXPECT_EQ(recent.events().open_appends, 2);
  }
  EXPECT_EQ(recent.events().open_appends, 0);

  recent.NoteEvaluation(absl::StatusCode::kCancelled);
  EXPECT_EQ(recent.events().evaluations.count, 0);
  recent.NoteEvaluation(absl::StatusCode::kInternal);
  for (int i = 0; i < 63; ++i) recent.NoteEvaluation(absl::StatusCode::kOk);
  EXPECT_EQ(recent.events().evaluations.count, 64);
  EXPECT_EQ(recent.events().evaluations.refused, uint64_t{1} << 63);
  EXPECT_EQ(recent.events().evaluations.code, absl::StatusCode::kInternal);
  recent.NoteEvaluation(absl::StatusCode::kOk);
  EXPECT_EQ(recent.events().evaluations.refused, 0) << "one was forgotten";
}

}  // namespace
}  // namespace sis
