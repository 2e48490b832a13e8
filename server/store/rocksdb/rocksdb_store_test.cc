// Promises of RocksDB beyond those of all stores.
#include "server/store/rocksdb/rocksdb_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "kernels/block/block.h"
#include "server/testing/backing.h"
#include "server/testing/store_parts.h"

namespace sis {
namespace {

using ::testing::IsEmpty;

int KeysIn(const RocksDbBacking& backing, const std::string& prefix) {
  RocksDbDatabase database(backing.folder(), /*sync=*/false);
  EXPECT_TRUE(database.Open().ok());
  int keys = 0;
  RocksDbDatabase::Items items(database, prefix, EndOfPrefix(prefix));
  for (; items.valid(); items.Next()) ++keys;
  return keys;
}

TEST(RocksDbStoreTest, OneProcessAtATime) {
  const RocksDbBacking backing;
  const auto store = Open(backing);
  EXPECT_TRUE(absl::IsUnavailable(OpenStore(backing.description()).status()));
}

TEST(RocksDbStoreTest, ADamagedPartIsNeverLoaded) {
  RocksDbBacking backing;
  const std::vector<StoredPart> parts = {Gap(5, 2), Block(0, 5, "some rows"), Seal(7, "a")};
  ASSERT_TRUE(Open(backing)->Put(Sequence("a"), parts, absl::InfiniteFuture()).ok());
  for (const StoredPart& part : parts) {
    const std::string key = PartKey(SequencePrefix(Sequence("a")), part);
    const size_t size = backing.OpenDatabase()->Get(key)->size();
    for (size_t byte = 0; byte < size; byte += 3) {
      if (byte >= 4 && byte < 12) continue;  // when it expires: it is gone then
      backing.Damage(key, byte);
      EXPECT_TRUE(absl::IsDataLoss(Open(backing)->Load(Sequence("a")).status())) << byte;
      backing.Damage(key, byte);
    }
  }
  const auto store = Open(backing);
  EXPECT_TRUE(store->Load(Sequence("a")).ok());
}

TEST(RocksDbStoreTest, AValueUnderAnotherKeyIsNotLoaded) {
  RocksDbBacking backing;
  for (uint32_t n = 0; n < 2; ++n) {
    ASSERT_TRUE(PutOne(*Open(backing), Sequence("a"), Block(n, 1, "rows")).ok());
  }
  const std::string prefix = SequencePrefix(Sequence("a"));
  const std::string value = *backing.OpenDatabase()->Get(PartKey(prefix, Block(0, 1, "")));
  backing.PutRaw(PartKey(prefix, Block(1, 1, "")), value);
  EXPECT_TRUE(absl::IsDataLoss(Open(backing)->Load(Sequence("a")).status()));
}

TEST(RocksDbStoreTest, ADamagedSequenceCanBeDropped) {
  RocksDbBacking backing;
  ASSERT_TRUE(PutOne(*Open(backing), Sequence("a"), Block(0, 1, "rows")).ok());
  backing.Damage(PartKey(SequencePrefix(Sequence("a")), Block(0, 1, "")), 20);
  const auto store = Open(backing);
  EXPECT_EQ(*DropOne(*store, Sequence("a"), kReleased), true);
  EXPECT_EQ(store->Load(Sequence("a"))->dropped, kReleased);
}

TEST(RocksDbStoreTest, ADamagedRunRecordIsNeverServedAndCanBeReplaced) {
  RocksDbBacking backing;
  const StoredRun run{"run", 3, 5, "config"}, next{"run", 1, 0, "another config"};
  ASSERT_TRUE(Open(backing)->PutRun(run).ok());
  ASSERT_TRUE(PutOne(*Open(backing), {"run", 2, "kept", 0}, Block(0, 1, "rows")).ok());
  const std::string key = RunKey("run");
  const size_t size = backing.OpenDatabase()->Get(key)->size();
  for (size_t byte = 0; byte < size; byte += 5) {
    if (byte >= 4 && byte < 12) continue;  // when it expires: it is gone then
    backing.Damage(key, byte);
    {
      const auto store = Open(backing);
      EXPECT_TRUE(absl::IsDataLoss(store->GetRun("run").status())) << byte;
      const ListedRuns listed = *store->ListRuns();
      EXPECT_THAT(listed.runs, IsEmpty());
      ASSERT_EQ(listed.unreadable.size(), 1);
      EXPECT_EQ(listed.unreadable[0].first, "run");
    }
    backing.Damage(key, byte);
  }
  EXPECT_EQ(*Open(backing)->GetRun("run"), run);
  backing.Damage(key, size - 1);
  const auto store = Open(backing);
  EXPECT_EQ(*store->PutRun(next), next);
  EXPECT_EQ(*store->GetRun("run"), next);
}

TEST(RocksDbStoreTest, ADeletedRunIsRememberedForAMonth) {
  RocksDbBacking backing;
  ASSERT_TRUE(Open(backing)->PutRun({"run", 3, 0, ""}).ok());
  const absl::Time expires = ItemExpires(*backing.OpenDatabase()->Get(RunKey("run")));
  EXPECT_GT(expires, absl::Now() + absl::Hours(29 * 24));
  EXPECT_LT(expires, absl::Now() + absl::Hours(31 * 24));
}

TEST(RocksDbStoreTest, OnlyTheReasonOfADroppedSequenceStays) {
  RocksDbBacking backing;
  const std::vector<StoredPart> parts = {Gap(5, 2), Block(0, 5, "rows"), Seal(7, "a")};
  ASSERT_TRUE(Open(backing)->Put(Sequence("a"), parts, absl::InfiniteFuture()).ok());
  EXPECT_EQ(KeysIn(backing, SequencePrefix(Sequence("a"))), 3);
  ASSERT_TRUE(DropOne(*Open(backing), Sequence("a"), kReleased).ok());
  EXPECT_EQ(KeysIn(backing, SequencePrefix(Sequence("a"))), 1);
}

// Data that a server left when it was killed while it superseded or deleted a run, or wrote too
// late.
TEST(RocksDbStoreTest, OpeningRemovesLeftoversOfFormerIncarnations) {
  RocksDbBacking backing;
  {
    const auto store = Open(backing);
    ASSERT_TRUE(store->PutRun({"superseded", 3, 0, "config"}).ok());
    ASSERT_TRUE(store->PutRun({"deleted", 2, 0, ""}).ok());
    for (const std::string run_id : {"superseded", "deleted", "unknown"}) {
      for (uint64_t incarnation = 1; incarnation <= 3; ++incarnation) {
        const SequenceIdentity sequence{run_id, incarnation, "a", 0};
        ASSERT_TRUE(PutOne(*store, sequence, Block(0, 1, "rows")).ok());
        ASSERT_TRUE(store->PutSteps(run_id, incarnation, {{1, "step"}}).ok());
      }
    }
  }
  for (const auto& [run_id, oldest] :
       {std::pair("superseded", 3), std::pair("deleted", 3), std::pair("unknown", 1)}) {
    const auto store = Open(backing);
    for (int incarnation = 1; incarnation <= 3; ++incarnation) {
      const auto number = static_cast<uint64_t>(incarnation);
      const bool kept = incarnation >= oldest;
      EXPECT_EQ(store->Load({run_id, number, "a", 0}).ok(), kept) << run_id << incarnation;
      EXPECT_EQ(store->GetSteps(run_id, number)->empty(), !kept) << run_id << incarnation;
    }
  }
}

// RemoveRange deletes complete tables, and parts of others.
TEST(RocksDbStoreTest, RemovingARunRemovesNothingElse) {
  RocksDbBacking backing;
  constexpr uint32_t kBlocks = 50;
  auto store = Open(backing);
  for (uint32_t n = 0; n < kBlocks; ++n) {
    for (uint64_t incarnation = 1; incarnation <= 4; ++incarnation) {
      for (const std::string id : {"a", "b"}) {
        const std::string rows(kMaxBlockBytes, static_cast<char>(n));
        ASSERT_TRUE(PutOne(*store, {"run", incarnation, id, 0}, Block(n, 1, rows)).ok());
      }
    }
  }
  ASSERT_TRUE(store->DropIncarnations("run", 2, 4).ok());
  for (const bool after_restart : {false, true}) {
    if (after_restart) {
      store.reset();
      store = Open(backing);
    }
    for (const std::string id : {"a", "b"}) {
      for (const uint64_t incarnation : {1, 4}) {
        EXPECT_EQ(store->Load({"run", incarnation, id, 0})->parts.size(), kBlocks);
      }
      for (const uint64_t incarnation : {2, 3}) {
        EXPECT_TRUE(absl::IsNotFound(store->Load({"run", incarnation, id, 0}).status()));
      }
    }
  }
}

}  // namespace
}  // namespace sis
