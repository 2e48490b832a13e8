#include <gtest/gtest.h>

#include "server/observe/verdict.h"
#include "server/testing/cache_fixture.h"
#include "server/testing/record_generator.h"

namespace sis {
namespace {

std::vector<RuleId> Found(const Run& run) {
  std::vector<RuleId> ids;
  for (const Finding& finding : FindingsIn(NumbersOf(run))) ids.push_back(finding.id);
  return ids;
}

// Uses a clock that tests set, to make readers and workers stop.
class RunNumbersTest : public testing::Test {
 protected:
  void Append(Ingest& ingest, const std::string& sequence) {
    v1::AppendBatch batch;
    *batch.add_entries() = EntryOf(*run_, records_.Block(sequence));
    ASSERT_EQ(ApplyAtOnce(ingest, batch)->acks(0).code(), 0);
  }

  Cache cache_;
  std::shared_ptr<sis::Run> run_ = cache_.CreateRun("r", SmallConfig());
  Records records_ = RecordGenerator(4, 1000, 1).NextRecords(8);
};

TEST_F(RunNumbersTest, ATrainerOrWorkersThatStopAreMissed) {
  std::optional<Ingest> worker = *Ingest::Open(cache_.runs, HeaderOf(*run_));
  // Rollouts of 40 s, steps of 20 s.
  for (int step = 0; step < 3; ++step) {
    Append(*worker, absl::StrCat(step, " a"));
    cache_.clock.Advance(absl::Seconds(40));
    Append(*worker, absl::StrCat(step, " b"));
    run_->Find({absl::StrCat(step, " a"), 0});
    cache_.clock.Advance(absl::Seconds(20));
    run_->Find({absl::StrCat(step, " b"), 0});
    EXPECT_EQ(Found(*run_), std::vector<RuleId>());
  }
  // The next rollout, without a reader.
  Append(*worker, "3 a");
  cache_.clock.Advance(absl::Seconds(80));
  EXPECT_EQ(Found(*run_), std::vector<RuleId>());
  Append(*worker, "3 b");
  cache_.clock.Advance(absl::Seconds(1));
  EXPECT_EQ(Found(*run_), std::vector<RuleId>{RuleId::kTrainerStopped});
  run_->Find({"3 a", 0});
  EXPECT_EQ(Found(*run_), std::vector<RuleId>());
  // A pause without a rollout.
  cache_.clock.Advance(absl::Minutes(3));
  run_->Find({"3 b", 0});
  EXPECT_EQ(Found(*run_), std::vector<RuleId>{RuleId::kIngestStalled});
  worker.reset();
  EXPECT_EQ(Found(*run_), std::vector<RuleId>()) << "nobody is there to record";
}

TEST_F(RunNumbersTest, RefusalsAreForgottenAfterAWhile) {
  ASSERT_EQ(AppendBlock(cache_, *run_, records_.Block("a")).code(), 0);
  ASSERT_NE(AppendBlock(cache_, *run_, records_.Block("a", 1)).code(), 0);
  run_->Find({"a", 0});
  EXPECT_EQ(Found(*run_), std::vector<RuleId>{RuleId::kEntriesRefused});
  EXPECT_EQ(FindingsIn(NumbersOf(*run_)).front().reason,
            "Append refused 1 entries, the last 0 ago (ALREADY_EXISTS).");
  cache_.clock.Advance(kWindow);
  EXPECT_EQ(Found(*run_), std::vector<RuleId>{RuleId::kEntriesRefused});
  cache_.clock.Advance(absl::Seconds(1));
  EXPECT_EQ(Found(*run_), std::vector<RuleId>());
}

TEST_F(RunNumbersTest, SequencesEvictedUnreadAndAFullQuotaAreFound) {
  v1::RunConfig config = SmallConfig();
  config.set_byte_quota(64 << 10);
  const auto run = cache_.CreateRun("small", config);
  int appended = 0;
  while (run->budget().fullness() <= 0.9) {
    ASSERT_EQ(AppendBlock(cache_, *run, records_.Block(std::to_string(appended++))).code(), 0);
  }
  EXPECT_EQ(Found(*run), std::vector<RuleId>{RuleId::kCacheNearLimit});
  ASSERT_TRUE(run->EvictOldest());
  EXPECT_EQ(Found(*run).front(), RuleId::kEvictedUnread);
}

TEST_F(RunNumbersTest, TheLastDrawsAreJudgedBesideThoseBefore) {
  for (uint64_t draw = 0; draw < 10; ++draw) {
    Evaluated evaluated;
    evaluated.sums.accepted = 200 + static_cast<int64_t>(draw);
    evaluated.ages[0] = {.accepted = 60, .d = int64_t{1} << 29};
    evaluated.ages[1] = {.accepted = 100, .d = int64_t{1} << 30};
    evaluated.ages[kAhead] = {.rejected = 40, .d = int64_t{1} << 29};
    run_->steps().Claim(draw, 1, {0, 8});
    run_->steps().Add(draw, evaluated, run_->now());
  }
  const RunNumbers numbers = NumbersOf(*run_);
  EXPECT_EQ(numbers.last.scored, 205 + 206 + 207 + 208 + 209) << "four have too few tokens";
  EXPECT_EQ(numbers.last.fresh, 500);
  EXPECT_EQ(numbers.last.fresh_d, 5);
  EXPECT_EQ(numbers.before.accepted, 200 + 201 + 202 + 203 + 204);
  EXPECT_EQ(Found(*run_), std::vector<RuleId>());
}

}  // namespace
}  // namespace sis
