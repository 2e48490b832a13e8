// Runs come and go: created, deleted, forgotten, and found again, whatever keeps them.
#include "server/store/stored_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/append/ingest.h"
#include "server/testing/backing.h"
#include "server/testing/record_generator.h"
#include "server/testing/replica.h"
#include "server/testing/store_parts.h"

namespace sis {
namespace {

constexpr int kSlots = 4;

// One server's runs, from start to end.
class Replica : public sis::Replica {
 public:
  Replica(const std::string& store, const Limits& limits)
      : sis::Replica(*OpenStore(store), limits) {
    const auto recovered = runs().Recover();
    EXPECT_TRUE(recovered.ok()) << recovered.status();
    recovered_ = recovered.value_or(StoredRuns::Recovered());
  }

  const StoredRuns::Recovered& recovered() const { return recovered_; }

  absl::StatusOr<RunRegistry::Created> Create(const std::string& id, uint64_t incarnation = 0,
                                              const v1::RunConfig& config = SmallConfig(kSlots),
                                              const Caller& caller = Caller()) {
    return runs().Create(CreateRequest(id, config, incarnation), caller);
  }
  absl::StatusOr<std::shared_ptr<Run>> Find(const std::string& id, uint64_t incarnation = 0,
                                            const Caller& caller = Caller()) {
    return runs().Find(RefOf(id, incarnation), caller);
  }
  absl::StatusOr<bool> Delete(const std::string& id, uint64_t incarnation = 0,
                              const Caller& caller = Caller()) {
    return runs().Delete(RefOf(id, incarnation), caller);
  }

  // Sequence "a" of 10 positions.
  absl::Status Append(const std::string& id) {
    const absl::StatusOr<std::shared_ptr<Run>> run = Find(id);
    if (!run.ok()) return run.status();
    absl::StatusOr<Ingest> ingest = Ingest::Open(runs(), HeaderOf(**run));
    if (!ingest.ok()) return ingest.status();
    v1::AppendBatch batch;
    *batch.add_entries() = EntryOf(**run, records_.Block("a"));
    const absl::StatusOr<v1::AppendResponse> response = ApplyAtOnce(*ingest, batch);
    if (!response.ok()) return response.status();
    const v1::Ack& ack = response->acks(0);
    return absl::Status(static_cast<absl::StatusCode>(ack.code()), ack.message());
  }
  // Returns the positions of sequence "a", in memory or in the store.
  int64_t Positions(const std::string& id) {
    Run& run = **Find(id);
    const FoundSequence found =
        run.backing() == nullptr ? run.Find({"a", 0}) : run.backing()->Find(run, {"a", 0});
    const auto* sequence = std::get_if<0>(&found);
    return sequence == nullptr ? 0 : (*sequence)->positions();
  }

 private:
  const Records records_ = RecordGenerator(kSlots, 1000, 1).NextRecords(10);
  StoredRuns::Recovered recovered_;
};

class RunsTest : public testing::TestWithParam<std::string> {
 protected:
  RunsTest() {
    if (GetParam() == "rocksdb") backing_.emplace();
  }

  std::string store() const { return backing_.has_value() ? backing_->description() : "memory"; }
  Replica Start(const Limits& limits = {}) { return Replica(store(), limits); }

  // Replaces the stored record of the run, perhaps by bytes that are no record.
  void PutRecord(const StoredRun& run, bool damaged = false) {
    backing_->PutRaw("sis:runs", "r" + run.run_id, "damaged");
    if (damaged) return;
    EXPECT_EQ(*Open(*backing_)->PutRun(run), run);
  }

  std::optional<RocksDbBacking> backing_;
};

class DurableRunsTest : public RunsTest {};

std::string NameOfStore(const testing::TestParamInfo<std::string>& info) { return info.param; }
INSTANTIATE_TEST_SUITE_P(Stores, RunsTest, testing::Values("memory", "rocksdb"), NameOfStore);
INSTANTIATE_TEST_SUITE_P(Stores, DurableRunsTest, testing::Values("rocksdb"), NameOfStore);

TEST_P(RunsTest, DeletingMakesRoomForOthers) {
  constexpr int kMaxRuns = 3;
  Replica replica = Start({.max_runs = kMaxRuns});
  for (int i = 0; i < 3 * kMaxRuns; ++i) {
    const std::string id = absl::StrCat("run", i);
    ASSERT_TRUE(replica.Create(id).ok()) << id;
    ASSERT_TRUE(replica.Append(id).ok());
    EXPECT_GT(replica.registry().budget().used(), 0);
    EXPECT_EQ(*replica.Delete(id), true);
    EXPECT_TRUE(absl::IsNotFound(replica.Find(id).status()));
    EXPECT_EQ(replica.registry().budget().used(), 0);
    EXPECT_EQ(*replica.Delete(id), false) << "a second time";
  }
  EXPECT_THAT(replica.registry().List(), testing::IsEmpty());
  EXPECT_EQ(*replica.Delete("never-there"), false);
  EXPECT_TRUE(absl::IsInvalidArgument(replica.Delete("no id").status()));
}

TEST_P(RunsTest, NotMoreRunsThanAllowedAreCreatedAtTheSameTime) {
  constexpr int kMaxRuns = 3;
  Replica replica = Start({.max_runs = kMaxRuns});
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> created = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 4 * kMaxRuns; ++i) {
      threads.emplace_back([&, id = absl::StrCat("run", i)] {
        const absl::Status status = replica.Create(id).status();
        created += status.ok();
        EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(created, kMaxRuns);
    for (const auto& run : replica.registry().List()) EXPECT_EQ(*replica.Delete(run->id()), true);
  }
}

TEST_P(RunsTest, LabelsNameOneVersionEach) {
  Replica replica = Start();
  sis::Run& run = *replica.Create("r")->run;
  const auto advance = [&](uint64_t version, const std::string& label) {
    return replica.runs().AdvanceVersion(run, version, label).status();
  };
  EXPECT_TRUE(advance(3, "step-3").ok());
  EXPECT_TRUE(advance(3, "step-3").ok()) << "a retry";
  EXPECT_TRUE(advance(5, "step-5").ok());
  EXPECT_TRUE(advance(3, "step-3").ok()) << "of an older version";
  EXPECT_TRUE(advance(6, "").ok());
  EXPECT_TRUE(advance(6, "late").ok()) << "an announced version";
  EXPECT_TRUE(advance(4, "later").ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(advance(4, "")));
  const VersionLabels labels = {{3, "step-3"}, {4, "later"}, {5, "step-5"}, {6, "late"}};
  EXPECT_EQ(run.version_labels(), labels);
  for (const uint64_t version : {2, 4, 6, 7}) {
    const absl::Status taken = advance(version, "step-3");
    EXPECT_TRUE(absl::IsAlreadyExists(taken)) << version << ": " << taken;
    EXPECT_THAT(std::string(taken.message()), testing::HasSubstr("'step-3'"));
    EXPECT_THAT(std::string(taken.message()),
                testing::HasSubstr(absl::StrCat("policy_version ", version)));
  }
  EXPECT_TRUE(absl::IsAlreadyExists(advance(5, "other")));
  EXPECT_TRUE(absl::IsInvalidArgument(advance(9, std::string(129, 'x'))));
  EXPECT_EQ(run.version_labels(), labels) << "nothing has changed";
  EXPECT_EQ(run.policy_version(), 6);
  EXPECT_TRUE(advance(9, std::string(128, 'x')).ok());
}

TEST_P(DurableRunsTest, LabelsOutliveTheServer) {
  VersionLabels labels;
  {
    Replica replica = Start();
    sis::Run& run = *replica.Create("r")->run;
    for (uint64_t version = 1; version <= kMaxVersionLabels + 5; ++version) {
      const std::string label = absl::StrCat("step-", version);
      ASSERT_TRUE(replica.runs().AdvanceVersion(run, version, label).ok());
    }
    labels = run.version_labels();
    EXPECT_EQ(labels.size(), kMaxVersionLabels);
    EXPECT_EQ(labels.begin()->first, 6);
  }
  Replica replica = Start();
  EXPECT_EQ((*replica.Find("r"))->version_labels(), labels);
  const auto again = replica.Create("r", 2);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->run->version_labels(), VersionLabels()) << "another life";
}

// An owner's name comes from outside, and a later version may forget to check it.
TEST_P(DurableRunsTest, WhatCouldNotBeTakenInAgainIsNotStored) {
  {
    Replica replica = Start();
    for (const std::string& identity : {std::string(257, 'x'), std::string("\xff")}) {
      const absl::Status refused =
          replica
              .Create("r", 0, SmallConfig(kSlots), {.identity = identity, .uses_all_runs = false})
              .status();
      EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    }
    EXPECT_THAT(replica.registry().List(), testing::IsEmpty());
  }
  Replica replica = Start();
  EXPECT_TRUE(absl::IsNotFound(replica.Find("r").status()));
  EXPECT_EQ(replica.Create("r")->run->incarnation(), 1);
}

std::string ConfigOf(const std::string& owner, int top_k = kSlots) {
  v1::RunConfig config = SmallConfig(top_k);
  config.set_owner(owner);
  return config.SerializeAsString();
}

// The ways in which a record can't be used that no flag of the server changes.
struct BadRecord {
  std::string run_id;
  std::string config;
  bool damaged = false;
};
std::vector<BadRecord> BadRecords() {
  return {{.run_id = "damaged", .config = ConfigOf("alice"), .damaged = true},
          {.run_id = "no-message", .config = "\xff"},
          {.run_id = "no-vocabulary", .config = v1::RunConfig().SerializeAsString() + "\x42\x01x"},
          {.run_id = "owner-too-long", .config = ConfigOf(std::string(257, 'x'))}};
}

// Adds a draw with `accepted` accepted tokens to the run.
void Evaluate(Run& run, uint64_t draw, int64_t accepted) {
  run.steps().Claim(draw, 1, {0, static_cast<uint32_t>(accepted)});
  Evaluated evaluated;
  evaluated.sums.accepted = accepted;
  run.steps().Add(draw, evaluated, absl::FromUnixSeconds(static_cast<int64_t>(1000 + draw)));
}

// The tokens accepted, draw by draw.
std::vector<int64_t> Accepted(const Run& run) {
  std::vector<int64_t> accepted;
  for (const StepLedger::Step& step : run.steps().List()) {
    EXPECT_EQ(step.ended, absl::FromUnixSeconds(static_cast<int64_t>(1000 + step.draw)));
    accepted.push_back(step.evaluated.sums.accepted);
  }
  return accepted;
}

TEST_P(DurableRunsTest, StepsGoOnAfterARestart) {
  {
    Replica replica = Start();
    const std::shared_ptr<sis::Run> run = replica.Create("r")->run;
    for (const uint64_t draw : {7, 3, 9}) Evaluate(*run, draw, static_cast<int64_t>(draw));
  }
  {
    Replica replica = Start();
    const std::shared_ptr<sis::Run> run = *replica.Find("r");
    EXPECT_THAT(Accepted(*run), testing::ElementsAre(7, 3, 9));
    Evaluate(*run, 3, 5);
    Evaluate(*run, 4, 6);
  }
  Replica replica = Start();
  EXPECT_THAT(Accepted(**replica.Find("r")), testing::ElementsAre(7, 9, 5, 6));
}

// The ring of the store: each step takes the place of the one that is dropped.
TEST_P(DurableRunsTest, AStoreKeepsNoMoreStepsThanMemory) {
  constexpr int kMore = 10;
  {
    Replica replica = Start();
    const std::shared_ptr<sis::Run> run = replica.Create("r")->run;
    for (uint64_t draw = 0; draw < StepLedger::kSumsKept; ++draw) Evaluate(*run, draw, 1);
  }
  for (int start = 0; start < 2; ++start) {
    EXPECT_EQ(Open(*backing_)->GetSteps("r", 1)->size(), StepLedger::kSumsKept);
    Replica replica = Start();
    const std::shared_ptr<sis::Run> run = *replica.Find("r");
    const uint64_t last = *run->steps().last_draw();
    EXPECT_EQ(last, StepLedger::kSumsKept - 1 + kMore * start);
    for (int more = 1; more <= kMore; ++more) Evaluate(*run, last + more, 1);
  }
}

TEST_P(DurableRunsTest, StepsGoWithTheirRun) {
  {
    Replica replica = Start();
    for (const char* id : {"deleted", "superseded", "kept"}) {
      Evaluate(*replica.Create(id)->run, 1, 5);
    }
  }
  const auto has_steps = [&](const char* id) { return !Open(*backing_)->GetSteps(id, 1)->empty(); };
  EXPECT_TRUE(has_steps("deleted") && has_steps("superseded") && has_steps("kept"));
  {
    Replica replica = Start();
    EXPECT_EQ(*replica.Delete("deleted"), true);
    ASSERT_TRUE(replica.Create("superseded", 2).ok());
  }
  EXPECT_FALSE(has_steps("deleted") || has_steps("superseded"));
  EXPECT_TRUE(has_steps("kept"));
  // Steps of a run that was superseded just before its server was killed.
  ASSERT_TRUE(Open(*backing_)->PutSteps("superseded", 1, {{3, "any"}, {4, "other"}}).ok());
  { const Replica replica = Start(); }
  EXPECT_FALSE(has_steps("superseded"));
  EXPECT_TRUE(has_steps("kept"));
}

TEST_P(DurableRunsTest, DamagedStepsAreLeftOut) {
  {
    Replica replica = Start();
    for (const char* id : {"first", "second", "whole"}) {
      const std::shared_ptr<sis::Run> run = replica.Create(id)->run;
      Evaluate(*run, 1, 5);
      Evaluate(*run, 2, 6);
    }
  }
  ASSERT_TRUE(Open(*backing_)->PutSteps("first", 1, {{1, "no step"}}).ok());
  ASSERT_TRUE(Open(*backing_)->PutSteps("second", 1, {{0, "no step"}}).ok());
  const auto damaged = [](const Replica& replica) {
    std::vector<std::string> ids;
    for (const auto& [id, why] : replica.recovered().damaged_steps) ids.push_back(id);
    return ids;
  };
  for (int start = 0; start < 2; ++start) {
    Replica replica = Start();
    EXPECT_EQ(replica.recovered().runs, 3);
    EXPECT_THAT(damaged(replica), testing::ElementsAre("first", "second"));
    EXPECT_THAT(Accepted(**replica.Find("first")), testing::ElementsAre(5));
    EXPECT_THAT(Accepted(**replica.Find("second")), testing::ElementsAre(6));
    EXPECT_THAT(Accepted(**replica.Find("whole")), testing::ElementsAre(5, 6));
    if (start == 1) Evaluate(**replica.Find("first"), 3, 7);
  }
  Replica replica = Start();
  EXPECT_THAT(damaged(replica), testing::ElementsAre("second"));
  EXPECT_THAT(Accepted(**replica.Find("first")), testing::ElementsAre(5, 7));
}

TEST_P(DurableRunsTest, ARunAboveALimitThatWasLoweredIsThereWhenItIsRaised) {
  {
    Replica replica = Start();
    ASSERT_TRUE(replica.Create("r").ok());
    ASSERT_TRUE(replica.Append("r").ok());
  }
  {
    Replica replica = Start({.max_top_k = kSlots - 1});
    EXPECT_EQ(replica.recovered().runs, 0);
    for (const absl::Status& refused :
         {replica.Find("r").status(), replica.Create("r").status(), replica.Create("r", 1).status(),
          replica.Create("r", 2, SmallConfig(1)).status()}) {
      EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
      EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("--max_top_k=3"));
    }
    ASSERT_EQ(replica.runs().Quarantined().size(), 1);
    EXPECT_THAT(replica.runs().Quarantined().at("r"), testing::HasSubstr("--max_top_k=3"));
    EXPECT_TRUE(replica.Create("other", 0, SmallConfig(1)).ok());
  }
  {
    Replica replica = Start();
    EXPECT_EQ(replica.Positions("r"), 10);
    EXPECT_THAT(replica.runs().Quarantined(), testing::IsEmpty());
  }
  Replica replica = Start({.max_top_k = kSlots - 1});
  EXPECT_EQ(*replica.Delete("r"), true);
  EXPECT_THAT(replica.runs().Quarantined(), testing::IsEmpty());
  EXPECT_EQ(replica.Create("r", 0, SmallConfig(1))->run->incarnation(), 2);
}

TEST_P(DurableRunsTest, ABadRecordIsReplacedByItsOwner) {
  const Caller alice{.identity = "alice", .uses_all_runs = false};
  const Caller worker{.identity = "alice", .uses_all_runs = false, .supersedes = false};
  const Caller bob{.identity = "bob", .uses_all_runs = false};
  // A run of alice's with an unknown encoding, as from a later server.
  v1::RunConfig config = SmallConfig(kSlots);
  config.set_owner("alice");
  config.set_log_prob_encoding(static_cast<v1::LogProbEncoding>(99));
  PutRecord({"r", 3, 0, config.SerializeAsString()});
  ASSERT_TRUE(PutOne(*Open(*backing_), {"r", 3, "a", 0}, Block(0, 1, "rows")).ok());
  Replica replica = Start();
  EXPECT_TRUE(absl::IsDataLoss(replica.Find("r").status()));
  EXPECT_EQ(replica.runs().Quarantined().size(), 1);
  for (const Caller& other : {worker, bob}) {
    const absl::Status refused = replica.Create("r", 0, SmallConfig(kSlots), other).status();
    EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
  }
  EXPECT_TRUE(
      absl::IsFailedPrecondition(replica.Create("r", 3, SmallConfig(kSlots), alice).status()))
      << "nobody writes into what is there";
  const auto created = replica.Create("r", 0, SmallConfig(kSlots), alice);
  ASSERT_TRUE(created.ok()) << created.status();
  EXPECT_EQ(created->run->incarnation(), 4);
  EXPECT_EQ(created->run->config().owner, "alice");
  EXPECT_THAT(replica.runs().Quarantined(), testing::IsEmpty());
  ASSERT_TRUE(replica.Append("r").ok());
  EXPECT_EQ(replica.Positions("r"), 10);
}

TEST_P(DurableRunsTest, ABadRecordIsReplacedOrDeletedByAnAdmin) {
  const Caller alice{.identity = "alice", .uses_all_runs = false};
  for (const bool deletes : {true, false}) {
    for (const BadRecord& bad : BadRecords()) {
      SCOPED_TRACE(bad.run_id);
      PutRecord({bad.run_id, 3, 0, bad.config}, bad.damaged);
      Replica replica = Start();
      const auto hers = replica.Create(bad.run_id, 0, SmallConfig(kSlots), alice);
      EXPECT_TRUE(absl::IsPermissionDenied(hers.status())) << hers.status();
      EXPECT_TRUE(absl::IsNotFound(replica.Find(bad.run_id, 0, alice).status()));
      EXPECT_FALSE(replica.Delete(bad.run_id, 0, alice).value_or(false));
      EXPECT_TRUE(absl::IsDataLoss(replica.Find(bad.run_id).status()));
      if (deletes) {
        EXPECT_EQ(*replica.Delete(bad.run_id, 3), true);
        EXPECT_THAT(replica.runs().Quarantined(), testing::IsEmpty());
        EXPECT_EQ(*replica.Delete(bad.run_id), false);
      }
      const auto created = replica.Create(bad.run_id);
      ASSERT_TRUE(created.ok()) << created.status();
      EXPECT_EQ(created->run->incarnation(), bad.damaged && !deletes ? 1 : 4);
      EXPECT_THAT(replica.runs().Quarantined(), testing::IsEmpty());
      ASSERT_TRUE(replica.Append(bad.run_id).ok());
      EXPECT_EQ(replica.Positions(bad.run_id), 10);
    }
  }
}

TEST_P(RunsTest, OnlyThePresentIncarnationIsDeleted) {
  Replica replica = Start();
  ASSERT_TRUE(replica.Create("r", 3).ok());
  for (const uint64_t other : {1, 2, 4}) EXPECT_EQ(*replica.Delete("r", other), false) << other;
  EXPECT_TRUE(replica.Find("r", 3).ok());
  EXPECT_EQ(*replica.Delete("r", 3), true);
  EXPECT_TRUE(absl::IsNotFound(replica.Find("r").status()));
}

// Workers of the deleted run can't write into the next one, and it has none of the old records.
TEST_P(RunsTest, ARunOfTheSameNameBeginsAtTheNextIncarnation) {
  Replica replica = Start();
  for (uint64_t incarnation = 1; incarnation <= 3; ++incarnation) {
    const auto created = replica.Create("r");
    ASSERT_TRUE(created.ok()) << created.status();
    EXPECT_TRUE(created->created);
    EXPECT_EQ(created->run->incarnation(), incarnation);
    EXPECT_EQ(replica.Positions("r"), 0);
    ASSERT_TRUE(replica.Append("r").ok());
    EXPECT_EQ(replica.Positions("r"), 10);
    if (incarnation > 1) {
      EXPECT_TRUE(absl::IsFailedPrecondition(replica.Find("r", incarnation - 1).status()));
    }
    EXPECT_EQ(*replica.Delete("r"), true);
    EXPECT_TRUE(absl::IsFailedPrecondition(replica.Create("r", incarnation).status()));
  }
  EXPECT_EQ(replica.Create("r", 10)->run->incarnation(), 10);
  EXPECT_TRUE(absl::IsInvalidArgument(replica.Create("r", UINT64_MAX).status()));
}

TEST_P(DurableRunsTest, WhatWasDeletedStaysDeletedOverARestart) {
  {
    Replica replica = Start();
    for (const char* id : {"kept", "deleted"}) {
      ASSERT_TRUE(replica.Create(id).ok());
      ASSERT_TRUE(replica.Append(id).ok());
    }
    EXPECT_EQ(*replica.Delete("deleted"), true);
  }
  Replica replica = Start();
  EXPECT_EQ(replica.recovered().runs, 1);
  EXPECT_EQ(replica.Positions("kept"), 10);
  EXPECT_TRUE(absl::IsNotFound(replica.Find("deleted").status()));
  const auto again = replica.Create("deleted");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->run->incarnation(), 2);
  EXPECT_EQ(replica.Positions("deleted"), 0);
}

TEST_P(DurableRunsTest, NothingOfADeletedRunIsLeftOnDisk) {
  {
    Replica replica = Start();
    ASSERT_TRUE(replica.Create("r").ok());
    ASSERT_TRUE(replica.Append("r").ok());
    EXPECT_EQ(*replica.Delete("r"), true);
  }
  // As if a stream had been writing meanwhile.
  ASSERT_TRUE(PutOne(*Open(*backing_), {"r", 1, "late", 0}, Block(0, 1, "rows")).ok());
  EXPECT_EQ(Start().recovered().runs, 0);
  EXPECT_EQ(backing_->CountItems("sis:run/"), 0);
}

TEST_P(DurableRunsTest, FewerRunsAllowedThanStoredIsNoReasonNotToStart) {
  {
    Replica replica = Start({.max_runs = 4});
    for (const char* id : {"a", "b", "c", "d"}) ASSERT_TRUE(replica.Create(id).ok());
  }
  Replica replica = Start({.max_runs = 2});
  EXPECT_EQ(replica.recovered().runs, 4);
  EXPECT_TRUE(absl::IsResourceExhausted(replica.Create("e").status()));
  for (const char* id : {"a", "b", "c"}) EXPECT_EQ(*replica.Delete(id), true);
  EXPECT_TRUE(replica.Create("e").ok());
}

TEST_P(RunsTest, IdleRunsGo) {
  Replica replica = Start();
  for (const char* id : {"used", "idle"}) {
    ASSERT_TRUE(replica.Create(id).ok());
    ASSERT_TRUE(replica.Append(id).ok());
  }
  const auto idle = *replica.Find("idle");
  replica.clock().Advance(absl::Minutes(40));
  ASSERT_TRUE(replica.Find("used").ok());
  replica.clock().Advance(absl::Minutes(40));
  replica.runs().ForgetIdle(absl::InfiniteDuration());
  EXPECT_EQ(replica.registry().List().size(), 2);
  replica.runs().ForgetIdle(absl::Hours(1));
  ASSERT_EQ(replica.registry().List().size(), 1);
  EXPECT_EQ(replica.registry().List()[0]->id(), "used");
  EXPECT_EQ(idle->sequences(), 0) << "though a stream may hold the run";
  EXPECT_TRUE(absl::IsNotFound(replica.Find("idle").status()));
}

}  // namespace
}  // namespace sis
