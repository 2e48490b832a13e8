// Two servers that share a store: each serves what the other has stored.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <variant>

#include "server/testing/faulty_store.h"
#include "server/testing/record_generator.h"
#include "server/testing/replica.h"
#include "server/testing/store_in_memory.h"

namespace sis {
namespace {

using absl::StatusCode;

constexpr int kSlots = 2;

class SharedStoreTest : public testing::Test {
 protected:
  std::unique_ptr<Store> OpenStore(const std::string& server) {
    return std::make_unique<FaultyStore>(std::make_unique<StoreInMemory>(maps_, server), fault_);
  }
  // What it serves.
  static int64_t Positions(Replica& server, const std::string& id) {
    const Run::Found found = server.Find(id);
    const auto* sequence = std::get_if<std::shared_ptr<Sequence>>(&found);
    return sequence == nullptr ? 0 : (*sequence)->positions();
  }
  StatusCode Append(Replica& server, uint32_t first, uint32_t count, const Records& records) {
    const v1::Ack ack = server.AppendBlock(records.Block("a", first, 0, first, count));
    return static_cast<StatusCode>(ack.code());
  }
  StatusCode Append(Replica& server, uint32_t first, uint32_t count) {
    return Append(server, first, count, records_);
  }
  static StatusCode Seal(Replica& server, uint32_t length) {
    v1::AppendEntry seal;
    seal.mutable_sequence()->set_id("a");
    seal.mutable_seal()->set_length(length);
    return static_cast<StatusCode>(server.Append(seal).code());
  }

  const Records records_ = RecordGenerator(kSlots, 1000, 1).NextRecords(100);
  const Records others_ = RecordGenerator(kSlots, 1000, 2).NextRecords(100);
  StoreMaps maps_;
  std::atomic<Fault> fault_ = Fault::kNone;
  Replica one_{OpenStore("one"), LosslessConfig(kSlots)};
  Replica two_{OpenStore("two"), LosslessConfig(kSlots)};
};

TEST_F(SharedStoreTest, EachReadsWhatTheOtherHasStoredSince) {
  for (uint32_t first = 0; first < 80; first += 20) {
    Replica& writer = first % 40 == 0 ? one_ : two_;
    ASSERT_EQ(Append(writer, first, 20), StatusCode::kOk);
    EXPECT_EQ(Positions(one_, "a"), first + 20);
    EXPECT_EQ(Positions(two_, "a"), first + 20);
  }
  // What is sealed, but has positions that one server doesn't know.
  ASSERT_EQ(Seal(one_, 100), StatusCode::kOk);
  ASSERT_EQ(Append(two_, 80, 20), StatusCode::kOk);
  EXPECT_EQ(Positions(one_, "a"), 100);
  // All of it is in memory.
  fault_ = Fault::kDown;
  EXPECT_EQ(Positions(one_, "a"), 100);
}

TEST_F(SharedStoreTest, WhatOthersMayHaveAddedIsNotKnownWithoutTheStore) {
  ASSERT_EQ(Append(one_, 0, 20), StatusCode::kOk);
  fault_ = Fault::kDown;
  EXPECT_EQ(one_.Find("a"), Run::Found(MissingReason::kStoreDown));
}

TEST_F(SharedStoreTest, AResendToAnotherServerIsNothingNew) {
  ASSERT_EQ(Append(two_, 90, 10), StatusCode::kOk);  // so that it has the sequence in memory
  ASSERT_EQ(Append(one_, 10, 20), StatusCode::kOk);
  ASSERT_EQ(Append(one_, 50, 20), StatusCode::kOk);
  EXPECT_EQ(Append(two_, 0, 60), StatusCode::kOk);
  EXPECT_EQ(Positions(one_, "a"), 80);
  WriterLock lock(maps_.mutex);
  std::string blocks;
  for (const auto& [position, block] : maps_.sequences.begin()->second.blocks) {
    blocks += std::to_string(position) + "+" + std::to_string(block.count) + " ";
  }
  EXPECT_EQ(blocks, "0+10 10+20 30+20 50+20 90+10 ");
}

TEST_F(SharedStoreTest, WhatIsStoredStays) {
  ASSERT_EQ(Append(two_, 90, 10), StatusCode::kOk);
  ASSERT_EQ(Append(one_, 10, 20), StatusCode::kOk);
  EXPECT_EQ(Append(two_, 0, 20, others_), StatusCode::kUnavailable) << "send it again";
  EXPECT_EQ(Append(two_, 0, 20, others_), StatusCode::kAlreadyExists);
  EXPECT_EQ(Positions(two_, "a"), 30);
  EXPECT_EQ(Append(two_, 0, 20), StatusCode::kOk);
}

TEST_F(SharedStoreTest, WhatOneReleasesTheOtherNoLongerTakesOrServes) {
  ASSERT_EQ(Append(two_, 0, 10), StatusCode::kOk);
  EXPECT_EQ(*one_.Release({"a"}), 1) << "which only the store has";
  EXPECT_EQ(Append(two_, 10, 10), StatusCode::kFailedPrecondition);
  EXPECT_EQ(two_.Find("a"), Run::Found(MissingReason::kReleased));
}

// It may be in use elsewhere; the store knows when it has expired.
TEST_F(SharedStoreTest, WhatExpiresInMemoryStaysStored) {
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

TEST_F(SharedStoreTest, WhatIsStaleAsFarAsOneServerKnowsStaysStored) {
  v1::RunConfig config = LosslessConfig(kSlots);
  config.set_max_staleness(1);
  Replica one(OpenStore("one"), config, "short"), two(OpenStore("two"), config, "short");
  ASSERT_EQ(one.AppendBlock(records_.Block("a", 0, 0, 0, 20)).code(), 0);
  EXPECT_EQ(*two.AdvanceVersion(1), 0);
  ASSERT_EQ(two.AppendBlock(records_.Block("a", 20, 1, 20, 20)).code(), 0);
  EXPECT_EQ(*one.AdvanceVersion(2), 1) << "leaves its memory";
  EXPECT_EQ(Positions(one, "a"), 40);
}

TEST_F(SharedStoreTest, RunsOfOthersAreNoticed) {
  EXPECT_EQ(*one_.AdvanceVersion(5), 0);
  two_.runs().TakeInShared();
  EXPECT_EQ(two_.run().policy_version(), 5);

  const Replica another(OpenStore("one"), LosslessConfig(kSlots), "another");
  two_.runs().TakeInShared();
  EXPECT_TRUE(two_.registry().Find("another", 1).ok());

  v1::RunRef ref;
  ref.set_run_id("run");
  EXPECT_EQ(*one_.runs().Delete(ref), true);
  ASSERT_EQ(Append(two_, 0, 10), StatusCode::kOk) << "it doesn't know yet";
  two_.runs().TakeInShared();
  EXPECT_FALSE(two_.registry().Find("run", 1).ok());
  WriterLock lock(maps_.mutex);
  EXPECT_THAT(maps_.sequences, testing::IsEmpty()) << "of what came too late nothing stays";
}

}  // namespace
}  // namespace sis
