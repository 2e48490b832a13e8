// Two servers that share a store, beyond the random operations of model_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <variant>

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
  const auto pass = [&](absl::Duration time, bool used) {
    for (Replica* server : {&one_, &two_}) server->clock().Advance(time);
    if (used) EXPECT_TRUE(one_.registry().Find("run", 1).ok());
    for (Replica* server : {&one_, &two_}) {
      server->runs().ForgetIdle(absl::Hours(1));
      server->runs().TakeInShared();
    }
  };
  for (int turn = 0; turn < 10; ++turn) pass(absl::Minutes(20), true);
  EXPECT_EQ(two_.registry().List().size(), 1);
  EXPECT_FALSE(two_.runs().registry().Idle(absl::Hours(1)).empty()) << "by itself it would go";
  for (int turn = 0; turn < 4; ++turn) pass(absl::Minutes(20), false);
  EXPECT_EQ(two_.registry().List().size(), 0);
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
  v1::RunConfig config = LosslessConfig(kSlots);
  config.set_max_staleness(1);
  Replica one(OpenStore("one"), config, "short"), two(OpenStore("two"), config, "short");
  ASSERT_EQ(one.AppendBlock(records_.Block("a", 0, 0, 0, 20)).code(), 0);
  EXPECT_EQ(*two.AdvanceVersion(1), 0);
  ASSERT_EQ(two.AppendBlock(records_.Block("a", 20, 1, 20, 20)).code(), 0);
  EXPECT_EQ(*one.AdvanceVersion(2), 1) << "leaves its memory";
  EXPECT_EQ(Positions(one, "a"), 40);
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
  // Nothing stays of blocks that came too late.
  const std::unique_ptr<Store> store = OpenStore("any");
  while (!absl::IsNotFound(store->Load({"run", 1, "a", 0}).status())) {
    absl::SleepFor(absl::Milliseconds(5));
  }
}

}  // namespace
}  // namespace sis
