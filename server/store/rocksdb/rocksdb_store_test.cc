// Promises of RocksDB beyond those of all stores.
#include "server/store/rocksdb/rocksdb_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/block/block.h"
#include "server/store/hash_store.h"
#include "server/testing/backing.h"
#include "server/testing/store_parts.h"

namespace sis {
namespace {

using ::testing::Contains;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

// Closes and opens the store, which writes what the log had into tables, and damages `bytes` there.
std::unique_ptr<Store> OpenDamaged(const RocksDbBacking& backing, const std::string& bytes) {
  Open(backing).reset();
  int damaged = 0;
  for (const auto& entry : std::filesystem::directory_iterator(backing.folder())) {
    if (entry.path().extension() != ".sst") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    const std::string all(std::istreambuf_iterator<char>(file), {});
    const size_t at = all.find(bytes);
    if (at == std::string::npos) continue;
    file.clear();
    file.seekp(static_cast<std::streamoff>(at));
    file << std::string(bytes.size(), 'x');
    ++damaged;
  }
  EXPECT_EQ(damaged, 1);
  return Open(backing);
}

// Blocks of 10 positions, each in its own part of a table, which has a checksum.
std::vector<StoredPart> LargeBlocks() {
  std::vector<StoredPart> blocks;
  for (uint32_t n = 0; n < 5; ++n) {
    blocks.push_back(Block(10 * n, 10, absl::StrCat("block ", n, std::string(20'000, 'a' + n))));
  }
  return blocks;
}

TEST(RocksDbStoreTest, OneProcessAtATime) {
  const RocksDbBacking backing;
  const auto store = Open(backing);
  EXPECT_TRUE(absl::IsUnavailable(OpenStore(backing.description()).status()));
}

TEST(RocksDbStoreTest, ADamagedBlockHidesNoOthers) {
  for (const bool sealed : {false, true}) {
    for (uint32_t damaged = 0; damaged < 5; ++damaged) {
      RocksDbBacking backing;
      std::vector<StoredPart> parts = LargeBlocks();
      if (sealed) parts.push_back(Seal(50, "annotation"));
      ASSERT_TRUE(PutParts(*Open(backing), Sequence("a"), parts).ok());
      const auto store = OpenDamaged(backing, absl::StrCat("block ", damaged));
      parts.erase(parts.begin() + damaged);
      parts.push_back({StoredPart::Kind::kGap, 10 * damaged, 10, "\x07"});
      EXPECT_THAT(store->Load(Sequence("a"))->parts, ElementsAreArray(parts));
      // It can be stored again.
      const StoredPart again = LargeBlocks()[damaged];
      ASSERT_TRUE(PutOne(*store, Sequence("a"), again).ok());
      EXPECT_THAT(store->Load(Sequence("a"))->parts, Contains(again));
    }
  }
}

TEST(RocksDbStoreTest, ADamagedSequenceCanBeDropped) {
  RocksDbBacking backing;
  ASSERT_TRUE(PutParts(*Open(backing), Sequence("a"), LargeBlocks()).ok());
  const auto store = OpenDamaged(backing, "block 2");
  EXPECT_EQ(*DropOne(*store, Sequence("a"), kReleased), true);
  EXPECT_EQ(store->Load(Sequence("a"))->dropped, kReleased);
}

TEST(RocksDbStoreTest, ADamagedRunRecordIsNeverServedAndCanBeReplaced) {
  RocksDbBacking backing;
  const StoredRun run{"run", 3, 5, "config"}, next{"run", 1, 0, "another config"};
  ASSERT_TRUE(Open(backing)->PutRun(run).ok());
  for (const std::string damaged : {"", "3", "3\n5\n100", "x\n5\n100\n\n"}) {
    backing.PutRaw("sis:runs", "rrun", damaged);
    const auto store = Open(backing);
    EXPECT_TRUE(absl::IsDataLoss(store->GetRun("run").status())) << damaged;
    const ListedRuns listed = *store->ListRuns();
    EXPECT_THAT(listed.runs, IsEmpty());
    ASSERT_EQ(listed.unreadable.size(), 1);
    EXPECT_EQ(listed.unreadable[0].first, "run");
  }
  const auto store = Open(backing);
  EXPECT_EQ(*store->PutRun(next), next);
  EXPECT_EQ(*store->GetRun("run"), next);
}

TEST(RocksDbStoreTest, ADeletedRunIsRememberedForAMonth) {
  RocksDbBacking backing;
  ASSERT_TRUE(Open(backing)->PutRun({"run", 3, 0, ""}).ok());
  std::string item;
  ASSERT_TRUE(backing.OpenDatabase()->Get(rocksdb::ReadOptions(), "sis:runs/rrun", &item).ok());
  const absl::Time expires = absl::FromUnixSeconds(std::stoll(item.substr(8 + 4)));
  EXPECT_GT(expires, absl::Now() + absl::Hours(29 * 24));
  EXPECT_LT(expires, absl::Now() + absl::Hours(31 * 24));
}

TEST(RocksDbStoreTest, OnlyTheReasonOfADroppedSequenceStays) {
  RocksDbBacking backing;
  const std::vector<StoredPart> parts = {Gap(5, 2), Block(0, 5, "rows"), Seal(7, "a")};
  ASSERT_TRUE(PutParts(*Open(backing), Sequence("a"), parts).ok());
  EXPECT_EQ(backing.CountItems(SequenceKey(Sequence("a"))), 4);
  ASSERT_TRUE(DropOne(*Open(backing), Sequence("a"), kReleased).ok());
  EXPECT_EQ(backing.CountItems(SequenceKey(Sequence("a"))), 2);
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

// DropIncarnations deletes complete tables, and parts of others.
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
