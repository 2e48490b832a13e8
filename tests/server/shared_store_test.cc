// Two servers that share a store, beyond the random operations of model_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/clock.h"
#include "server/store/open_store.h"
#include "server/testing/faulty_store.h"
#include "server/testing/record_generator.h"
#include "server/testing/redis_servers.h"
#include "server/testing/replica.h"

namespace sis {
namespace {

using absl::StatusCode;

constexpr int kSlots = 2;

class SharedStoreTest : public testing::Test {
 protected:
  std::unique_ptr<Store> OpenStore(const std::string& server) {
    return std::make_unique<FaultyStore>(*sis::OpenStore(redis_.address(), server), faults_);
  }
  // Returns the number of positions that the server serves.
  static int64_t Positions(Replica& server, const std::string& id) {
    const Run::Found found = server.Find(id);
    const auto* sequence = std::get_if<std::shared_ptr<Sequence>>(&found);
    return sequence == nullptr ? 0 : (*sequence)->positions();
  }
  StatusCode Append(Replica& server, uint32_t first, uint32_t count) {
    const v1::Ack ack = server.AppendBlock(records_.Block("a", first, 0, first, count));
    return static_cast<StatusCode>(ack.code());
  }

  static StatusCode Seal(Replica& server, const std::string& group = "") {
    v1::AppendEntry seal = SealEntry("a", 100);
    if (!group.empty()) seal.mutable_seal()->mutable_annotation()->set_group(group);
    return static_cast<StatusCode>(server.Append(seal).code());
  }

  // Returns when nothing is stored of a sequence.
  void AwaitNothing(const std::string& id) {
    const std::unique_ptr<Store> store = OpenStore("any");
    while (!absl::IsNotFound(store->Load({"run", 1, id, 0}).status())) {
      absl::SleepFor(absl::Milliseconds(5));
    }
  }

  // Returns a config by which records of the current version and of the one before are fresh.
  static v1::RunConfig ConfigWithStaleness() {
    v1::RunConfig config = LosslessConfig(kSlots);
    config.set_max_staleness(1);
    return config;
  }

  const Records records_ = RecordGenerator(kSlots, 1000, 1).NextRecords(100);
  const RedisServers redis_;
  Faults faults_;
  Replica one_{OpenStore("one"), LosslessConfig(kSlots)};
  Replica two_{OpenStore("two"), LosslessConfig(kSlots)};
};

TEST_F(SharedStoreTest, RecordsOfOtherServersAreUnknownWithoutTheStore) {
  ASSERT_EQ(Append(one_, 0, 20), StatusCode::kOk);
  faults_.fault = Fault::kDown;
  EXPECT_EQ(one_.Find("a"), Run::Found(MissingReason::kStoreDown));
}

TEST_F(SharedStoreTest, WhatOneReleasedTheOtherServesForASecondAtMost) {
  ASSERT_EQ(Append(one_, 0, 100), StatusCode::kOk);
  ASSERT_EQ(Seal(one_), StatusCode::kOk);
  ASSERT_EQ(Positions(two_, "a"), 100);
  EXPECT_EQ(*one_.Release({"a"}), 1);
  faults_.fault = Fault::kDown;  // the news wait for the store
  one_.runs().TakeInShared();
  two_.runs().TakeInShared();
  EXPECT_EQ(Positions(two_, "a"), 100);
  faults_.fault = Fault::kNone;
  one_.runs().TakeInShared();
  two_.runs().TakeInShared();
  EXPECT_EQ(two_.Find("a"), Run::Found(MissingReason::kReleased));
}

TEST_F(SharedStoreTest, AnAnnotationOfOneIsTheOthers) {
  ASSERT_EQ(Append(one_, 0, 100), StatusCode::kOk);
  ASSERT_EQ(Seal(one_), StatusCode::kOk);
  ASSERT_EQ(Positions(two_, "a"), 100);
  ASSERT_EQ(Seal(one_, "group"), StatusCode::kOk);
  one_.runs().TakeInShared();
  two_.runs().TakeInShared();
  EXPECT_THAT(std::get<std::shared_ptr<Sequence>>(two_.Find("a"))->annotation(),
              testing::HasSubstr("group"));
}

TEST_F(SharedStoreTest, WhatHasNotChangedIsNotLoadedAgain) {
  ASSERT_EQ(Append(one_, 0, 20), StatusCode::kOk);
  for (const int loads : {1, 0, 0}) {
    const int before = faults_.loads;
    EXPECT_EQ(Positions(two_, "a"), 20);
    EXPECT_EQ(faults_.loads - before, loads);
  }
  ASSERT_EQ(Append(one_, 20, 20), StatusCode::kOk);
  EXPECT_EQ(Positions(two_, "a"), 40);
}

TEST_F(SharedStoreTest, ARunThatOneUsesIsIdleNowhere) {
  Faults faults;  // of the third server
  Replica three(std::make_unique<FaultyStore>(*sis::OpenStore(redis_.address(), "three"), faults),
                LosslessConfig(kSlots));
  // The first server sends a use up to 16 minutes later, so the others hear nothing for 64 minutes.
  const auto pass = [&](bool used) {
    if (used) EXPECT_TRUE(one_.registry().Find("run", 1).ok());
    for (int minute = 0; minute < 56; minute += 4) {
      for (Replica* server : {&one_, &two_, &three}) {
        server->clock().Advance(absl::Minutes(4));
        server->runs().ForgetIdle(absl::Hours(1));
        server->runs().TakeInShared();
      }
    }
  };
  const auto size = [](Replica& server) { return server.registry().List().size(); };
  for (int turn = 0; turn < 5; ++turn) pass(true);
  faults.fault = Fault::kDown;
  for (int turn = 0; turn < 4; ++turn) pass(true);
  redis_.Ask(0, {"DEL", "sis:news"});
  faults.fault = Fault::kNone;
  pass(true);
  for (Replica* server : {&two_, &three}) {
    EXPECT_EQ(size(*server), 1);
    EXPECT_FALSE(server->registry().Idle(absl::Hours(1)).empty()) << "by itself it would go";
  }
  for (int turn = 0; turn < 3; ++turn) pass(false);
  EXPECT_EQ(size(two_), 0);
}

// It may be in use elsewhere; the store knows when it has expired.
TEST_F(SharedStoreTest, SequencesThatExpireInMemoryStayStored) {
  v1::RunConfig config = LosslessConfig(kSlots);
  config.set_time_to_live_seconds(60);
  Replica one(OpenStore("one"), config, "short");
  const v1::Ack ack = one.AppendBlock(records_.Block("a"));
  ASSERT_EQ(ack.code(), 0);
  one.clock().Advance(absl::Minutes(2));
  one.registry().DropExpired();
  Replica two(OpenStore("two"), config, "short");
  EXPECT_EQ(Positions(two, "a"), 100);
}

TEST_F(SharedStoreTest, SequencesThatOneServerConsidersStaleStayStored) {
  const v1::RunConfig config = ConfigWithStaleness();
  Replica one(OpenStore("one"), config, "short"), two(OpenStore("two"), config, "short");
  ASSERT_EQ(one.AppendBlock(records_.Block("a", 0, 0, 0, 20)).code(), 0);
  EXPECT_EQ(*two.AdvanceVersion(1), 0);
  ASSERT_EQ(two.AppendBlock(records_.Block("a", 20, 1, 20, 20)).code(), 0);
  EXPECT_EQ(*one.AdvanceVersion(2), 1) << "leaves its memory";
  EXPECT_EQ(Positions(one, "a"), 40);
}

TEST_F(SharedStoreTest, StaleSequencesAreDroppedUnlessTheyGoOn) {
  const v1::RunConfig config = ConfigWithStaleness();
  Replica two(OpenStore("two"), config, "short");
  {
    Replica one(OpenStore("one"), config, "short");
    for (const char* id : {"a", "b"}) {
      ASSERT_EQ(one.AppendBlock(records_.Block(id, 0, 0, 0, 20)).code(), 0);
    }
    faults_.after_next_load = [&] {
      EXPECT_EQ(two.AppendBlock(records_.Block("a", 20, 2, 20, 20)).code(), 0);
    };
    EXPECT_EQ(*one.AdvanceVersion(2), 2);
  }  // which waits for the drops
  EXPECT_EQ(Positions(two, "a"), 40);
  EXPECT_EQ(two.Find("b"), Run::Found(MissingReason::kStale));
}

TEST_F(SharedStoreTest, DropsWaitForTheStore) {
  const v1::RunConfig config = ConfigWithStaleness();
  {
    Replica one(OpenStore("one"), config, "short");
    ASSERT_EQ(one.AppendBlock(records_.Block("a", 0, 0, 0, 20)).code(), 0);
    const int loads = faults_.loads;
    faults_.fault = Fault::kDown;
    EXPECT_EQ(*one.run().AdvanceVersion(2), 1);
    while (faults_.loads == loads) absl::SleepFor(absl::Milliseconds(1));
    absl::SleepFor(absl::Milliseconds(20));  // in which the drop would be forgotten
    faults_.fault = Fault::kNone;
  }
  Replica two(OpenStore("two"), config, "short");
  EXPECT_EQ(two.Find("a"), Run::Found(MissingReason::kStale));
}

// A sequence that leaves memory during a batch takes unwritten entries of the batch with it.
TEST_F(SharedStoreTest, ABatchDuringWhichTheSequenceIsLoadedAgainIsRefused) {
  v1::AppendBatch first, second, both;
  *first.add_entries() = EntryOf(two_.run(), records_.Block("a", 10, 0, 10, 10));
  *second.add_entries() = EntryOf(two_.run(), records_.Block("a", 0, 0, 0, 10));
  both.MergeFrom(first);
  both.MergeFrom(second);
  absl::StatusOr<Ingest> ingest = Ingest::Open(two_.runs(), HeaderOf(two_.run()));
  ingest->BringIn(both);
  ASSERT_EQ(one_.Append(GapEntry("a", 10, 10)).code(), 0);
  std::vector<EntryAck> acks;
  ASSERT_TRUE(ingest->Apply(first, acks).ok());
  Positions(two_, "a");  // loads it
  ASSERT_TRUE(ingest->Apply(second, acks).ok());
  ingest->Store(both, acks);
  for (const EntryAck& ack : acks) EXPECT_TRUE(absl::IsUnavailable(ack.status)) << ack.status;
}

TEST_F(SharedStoreTest, NothingStaysOfASupersededRun) {
  const auto supersede = [](Replica& server, uint64_t incarnation) {
    EXPECT_TRUE(
        server.runs().Create(CreateRequest("run", LosslessConfig(kSlots), incarnation)).ok());
  };
  const auto await_drops = [&] {
    while (redis_.Ask(0, {"HLEN", "sis:drops"}).integer != 1) {
      absl::SleepFor(absl::Milliseconds(5));
    }
  };
  supersede(one_, 2);
  await_drops();
  // The other server doesn't know yet.
  ASSERT_EQ(Append(two_, 0, 10), StatusCode::kOk);
  v1::AppendBatch batch;
  *batch.add_entries() = EntryOf(two_.run(), records_.Block("under way", 0, 0, 0, 10));
  std::vector<EntryAck> acks;
  absl::StatusOr<Ingest> ingest = Ingest::Open(two_.runs(), HeaderOf(two_.run()));
  ingest->BringIn(batch);
  ASSERT_TRUE(ingest->Apply(batch, acks).ok());
  supersede(two_, 2);
  AwaitNothing("a");
  await_drops();
  ingest->Store(batch, acks);
  AwaitNothing("under way");
}

TEST_F(SharedStoreTest, LabelsOfOthersAreNoticed) {
  EXPECT_TRUE(one_.AdvanceVersion(5, "a").ok());
  EXPECT_TRUE(two_.AdvanceVersion(6, "b").ok()) << "which doesn't know 'a'";
  EXPECT_EQ(two_.run().version_labels(), (VersionLabels{{5, "a"}, {6, "b"}}));
  EXPECT_TRUE(one_.AdvanceVersion(4, "c").ok());
  two_.runs().TakeInShared();
  const VersionLabels all = {{4, "c"}, {5, "a"}, {6, "b"}};
  EXPECT_EQ(one_.run().version_labels(), all);
  EXPECT_EQ(two_.run().version_labels(), all);
  EXPECT_TRUE(one_.AdvanceVersion(7, "d").ok());
  EXPECT_TRUE(absl::IsAlreadyExists(two_.AdvanceVersion(8, "d").status()))
      << "though only the other has announced it";
  EXPECT_TRUE(absl::IsAlreadyExists(one_.AdvanceVersion(7, "e").status()));
  faults_.fault = Fault::kDown;
  EXPECT_TRUE(absl::IsUnavailable(one_.AdvanceVersion(9, "f").status()));
  EXPECT_EQ(one_.run().version_labels().count(9), 0) << "stored first";
}

TEST_F(SharedStoreTest, RunsOfOthersAreNoticed) {
  EXPECT_EQ(*one_.AdvanceVersion(5), 0);
  two_.runs().TakeInShared();
  EXPECT_EQ(two_.run().policy_version(), 5);

  const Replica another(OpenStore("one"), LosslessConfig(kSlots), "another");
  two_.runs().TakeInShared();
  EXPECT_TRUE(two_.registry().Find("another", 1).ok());

  EXPECT_EQ(*one_.runs().Delete(RefOf("run")), true);
  ASSERT_EQ(Append(two_, 0, 10), StatusCode::kOk) << "it doesn't know yet";
  two_.runs().TakeInShared();
  EXPECT_FALSE(two_.registry().Find("run", 1).ok());
  AwaitNothing("a");
}

}  // namespace
}  // namespace sis
