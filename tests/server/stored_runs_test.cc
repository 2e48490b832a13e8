// Runs come and go: created, deleted, forgotten, and found again, whatever keeps them.
#include "server/store/stored_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/append/ingest.h"
#include "server/store/stored_item.h"
#include "server/testing/backing.h"
#include "server/testing/cache_fixture.h"
#include "server/testing/record_generator.h"

namespace sis {
namespace {

constexpr int kSlots = 4;

// One server's runs, from start to end.
class Replica {
 public:
  Replica(const std::string& store, const ManualClock& clock, const Limits& limits = {})
      : store_(*OpenStore(store)),
        registry_(int64_t{1} << 26, *arena_, limits, [&clock] { return clock.Now(); }),
        room_queue_(registry_, absl::ZeroDuration(), [&clock] { return clock.Now(); }) {
    if (store_ != nullptr) stored_.emplace(*store_, registry_, [&clock] { return clock.Now(); });
    runs_.emplace(registry_, stored_.has_value() ? &*stored_ : nullptr);
    const auto recovered = runs_->Recover();
    EXPECT_TRUE(recovered.ok()) << recovered.status();
    recovered_ = recovered.value_or(StoredRuns::Recovered());
  }

  StoredRuns& runs() { return *runs_; }
  const RunRegistry& registry() const { return registry_; }
  const StoredRuns::Recovered& recovered() const { return recovered_; }

  absl::StatusOr<RunRegistry::Created> Create(const std::string& id, uint64_t incarnation = 0,
                                              uint64_t seed = 7) {
    v1::CreateRunRequest request;
    request.set_run_id(id);
    request.set_incarnation(incarnation);
    *request.mutable_config() = SmallConfig(kSlots);
    request.mutable_config()->set_seed(seed);
    return runs_->Create(request);
  }
  absl::StatusOr<std::shared_ptr<Run>> Find(const std::string& id, uint64_t incarnation = 0) {
    return runs_->Find(Ref(id, incarnation));
  }
  absl::StatusOr<bool> Delete(const std::string& id, uint64_t incarnation = 0) {
    return runs_->Delete(Ref(id, incarnation));
  }

  // Sequence "a" of 10 positions.
  absl::Status Append(const std::string& id) {
    const absl::StatusOr<std::shared_ptr<Run>> run = Find(id);
    if (!run.ok()) return run.status();
    absl::StatusOr<Ingest> ingest = Ingest::Open(*runs_, room_queue_, HeaderOf(**run));
    if (!ingest.ok()) return ingest.status();
    v1::AppendBatch batch;
    *batch.add_entries()->mutable_block() = records_.Block("a");
    const absl::StatusOr<v1::AppendResponse> response = ApplyAtOnce(*ingest, batch);
    if (!response.ok()) return response.status();
    const v1::Ack& ack = response->acks(0);
    return absl::Status(static_cast<absl::StatusCode>(ack.code()), ack.message());
  }
  // Of sequence "a", wherever it is.
  int64_t Positions(const std::string& id) {
    Run& run = **Find(id);
    const FoundSequence found =
        stored_.has_value() ? stored_->Find(run, {"a", 0}, 0, 0) : run.Find({"a", 0});
    const auto* sequence = std::get_if<0>(&found);
    return sequence == nullptr ? 0 : (*sequence)->positions();
  }

 private:
  static v1::RunRef Ref(const std::string& id, uint64_t incarnation) {
    v1::RunRef ref;
    ref.set_run_id(id);
    ref.set_incarnation(incarnation);
    return ref;
  }

  const Records records_ = RecordGenerator(kSlots, 1000, 1).NextRecords(10);
  std::unique_ptr<Arena> arena_ = *Arena::Map(int64_t{1} << 26);
  std::unique_ptr<SequenceStore> store_;
  RunRegistry registry_;
  std::optional<StoredCache> stored_;
  std::optional<StoredRuns> runs_;
  RoomQueue room_queue_;
  StoredRuns::Recovered recovered_;
};

class RunsTest : public testing::TestWithParam<std::string> {
 protected:
  RunsTest() {
    clock_.Advance(absl::Hours(24 * 36500));  // so that the store, by its own clock, keeps all
    if (GetParam() == "rocksdb") backing_ = std::make_unique<RocksDbBacking>();
    if (GetParam() == "memcached") backing_ = std::make_unique<MemcachedBacking>();
  }

  bool durable() const { return backing_ != nullptr; }
  bool shared() const { return GetParam() == "memcached"; }
  std::string store() const { return durable() ? backing_->description() : "memory"; }
  Replica Start(const Limits& limits = {}) { return Replica(store(), clock_, limits); }

  ManualClock clock_;
  std::unique_ptr<Backing> backing_;
};

class DurableRunsTest : public RunsTest {};
class ListedRunsTest : public RunsTest {};  // whose store can list what it has

std::string NameOfStore(const testing::TestParamInfo<std::string>& info) { return info.param; }
INSTANTIATE_TEST_SUITE_P(Stores, RunsTest, testing::Values("memory", "rocksdb", "memcached"),
                         NameOfStore);
INSTANTIATE_TEST_SUITE_P(Stores, DurableRunsTest, testing::Values("rocksdb", "memcached"),
                         NameOfStore);
INSTANTIATE_TEST_SUITE_P(Stores, ListedRunsTest, testing::Values("rocksdb"), NameOfStore);

TEST_P(RunsTest, DeletingMakesRoomForOthers) {
  constexpr int kMostRuns = 3;
  Replica replica = Start({.max_runs = kMostRuns});
  for (int i = 0; i < 3 * kMostRuns; ++i) {
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
  if (!shared()) {
    EXPECT_EQ(replica.recovered().runs, 1);
    EXPECT_EQ(replica.recovered().sequences, 1);
  }
  EXPECT_EQ(replica.Positions("kept"), 10);
  EXPECT_TRUE(absl::IsNotFound(replica.Find("deleted").status()));
  const auto again = replica.Create("deleted");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->run->incarnation(), 2);
  EXPECT_EQ(replica.Positions("deleted"), 0);
}

TEST_P(ListedRunsTest, NothingOfADeletedRunIsLeftOnDisk) {
  {
    Replica replica = Start();
    ASSERT_TRUE(replica.Create("r").ok());
    ASSERT_TRUE(replica.Append("r").ok());
    EXPECT_EQ(*replica.Delete("r"), true);
  }
  // As if a stream had been writing meanwhile.
  ASSERT_TRUE(AppendOne(*Open(*backing_), {"r", 1, "late", 0}, 0, Block(0, "rows")).ok());
  EXPECT_EQ(Start().recovered().runs, 0);
  int sequences = 0;
  EXPECT_TRUE(backing_->OpenItems()
                  ->Scan(std::string(kSequenceKeys),
                         [&](std::string_view key, std::string_view) -> std::string {
                           if (!key.starts_with(kSequenceKeys)) return "";
                           ++sequences;
                           return std::string(key) + '\0';
                         })
                  .ok());
  EXPECT_EQ(sequences, 0);
}

TEST_P(ListedRunsTest, FewerRunsAllowedThanStoredIsNoReasonNotToStart) {
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
  clock_.Advance(absl::Minutes(40));
  ASSERT_TRUE(replica.Find("used").ok());
  clock_.Advance(absl::Minutes(40));
  replica.runs().ForgetIdle(absl::InfiniteDuration());
  EXPECT_EQ(replica.registry().List().size(), 2);
  replica.runs().ForgetIdle(absl::Hours(1));
  ASSERT_EQ(replica.registry().List().size(), 1);
  EXPECT_EQ(replica.registry().List()[0]->id(), "used");
  EXPECT_EQ(idle->sequences(), 0) << "though a stream may hold the run";
  if (shared()) {
    EXPECT_EQ(replica.Positions("idle"), 10) << "other servers may be using it";
  } else {
    EXPECT_TRUE(absl::IsNotFound(replica.Find("idle").status()));
  }
}

TEST(ReplicasTest, OneDeletesForAll) {
  MemcachedBacking backing;
  ManualClock clock;
  Replica here(backing.description(), clock), there(backing.description(), clock);
  ASSERT_TRUE(here.Create("r").ok());
  ASSERT_TRUE(there.Append("r").ok());
  EXPECT_EQ(*here.Delete("r"), true);
  there.runs().ExchangeAllBehind();
  while (there.Find("r").ok()) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(absl::IsNotFound(there.Find("r").status()));
  EXPECT_EQ(there.Create("r")->run->incarnation(), 2);
  EXPECT_EQ(there.Positions("r"), 0);
}

// The one that loses is told, and serves the winner's run from then on.
TEST(ReplicasTest, OfTwoThatCreateOneRunDifferentlyOneWins) {
  MemcachedBacking backing;
  ManualClock clock;
  std::array<std::unique_ptr<Replica>, 2> replicas;
  for (auto& replica : replicas) {
    replica = std::make_unique<Replica>(backing.description(), clock);
  }
  for (int round = 0; round < 200; ++round) {
    const std::string id = absl::StrCat("run", round);
    std::array<bool, 2> won;
    std::array<std::thread, 2> threads;
    for (int i = 0; i < 2; ++i) {
      threads[i] = std::thread([&, i] {
        const absl::Status created = replicas[i]->Create(id, 0, 100 + i).status();
        won[i] = created.ok();
        EXPECT_TRUE(created.ok() || absl::IsAlreadyExists(created)) << created;
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_NE(won[0], won[1]) << id;
    for (auto& replica : replicas) {
      ASSERT_EQ((*replica->Find(id))->config().seed, won[0] ? 100 : 101) << id;
    }
  }
}

}  // namespace
}  // namespace sis
