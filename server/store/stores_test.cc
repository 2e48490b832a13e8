// What RocksDB promises besides, and how stores are named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/cache/missing.h"
#include "server/store/sequence_store.h"
#include "server/store/stored_item.h"
#include "server/testing/backing.h"
#include "server/testing/items_in_memory.h"
#include "server/testing/stored_entries.h"

namespace sis {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

struct Listed {
  std::vector<std::pair<std::string, uint64_t>> incarnations = {};
  std::vector<SequenceIdentity> present = {}, dropped = {};
};

// Leaves out the sequences of `but_for`.
Listed List(SequenceStore& store, const std::pair<std::string, uint64_t>& but_for = {}) {
  Listed listed;
  EXPECT_TRUE(store
                  .ListSequences(
                      [&](const std::string& run_id, uint64_t incarnation) {
                        listed.incarnations.emplace_back(run_id, incarnation);
                        return listed.incarnations.back() != but_for;
                      },
                      [&](const SequenceIdentity& sequence, bool is_dropped) {
                        (is_dropped ? listed.dropped : listed.present).push_back(sequence);
                      })
                  .ok());
  return listed;
}

TEST(RocksDbStoreTest, ListsRunsAndSequencesAfterARestart) {
  const RocksDbBacking backing;
  {
    const auto store = Open(backing);
    ASSERT_TRUE(store->PutRun({"run", 3, 0, "config"}).ok());
    ASSERT_TRUE(store->PutRun({"run2", 1, 0, ""}).ok());
    for (const std::string id : {"a", "b", "dropped", "removed", "sealed"}) {
      for (uint32_t n = 0; n < 3; ++n) {
        ASSERT_TRUE(AppendOne(*store, Sequence(id), n, Block(n, "rows")).ok());
      }
    }
    for (const std::string id : {"dropped", "removed", "never there"}) {
      ASSERT_TRUE(DropOne(*store, Sequence(id), kReleased).ok());
    }
    ASSERT_TRUE(store->RemoveDropped(Sequence("removed"), absl::Now() + absl::Hours(24)).ok());
    ASSERT_TRUE(store->WriteWholeForm(Sequence("sealed"), 3, "form", absl::InfiniteFuture()).ok());
    ASSERT_TRUE(AppendOne(*store, {"run", 2, "older", 0}, 0, Block(0, "rows")).ok());
    ASSERT_TRUE(store->DropIncarnations("run", 2, 3).ok());
  }
  const auto store = Open(backing);
  EXPECT_THAT(store->ListRuns()->runs,
              ElementsAre(StoredRun{"run", 3, 0, "config"}, StoredRun{"run2", 1, 0, ""}));
  EXPECT_TRUE(absl::IsNotFound(store->Read({"run", 2, "older", 0}).status()));
  Listed listed = List(*store);
  EXPECT_THAT(listed.incarnations, ElementsAre(Pair("run", 3)));
  EXPECT_THAT(listed.present, ElementsAre(Sequence("a"), Sequence("b"), Sequence("sealed")));
  EXPECT_THAT(listed.dropped, ElementsAre(Sequence("dropped"), Sequence("never there")));
  for (const SequenceIdentity& other :
       std::vector<SequenceIdentity>{{"ru", 3, "a", 0}, {"run", 4, "a", 0}, {"run3", 1, "a", 0}}) {
    ASSERT_TRUE(AppendOne(*store, other, 0, Block(0, "rows")).ok());
  }
  listed = List(*store, {"run", 3});
  EXPECT_THAT(listed.incarnations,
              ElementsAre(Pair("ru", 3), Pair("run", 3), Pair("run", 4), Pair("run3", 1)));
  EXPECT_EQ(listed.present.size(), 3) << "of those not entered none is shown";
  EXPECT_THAT(listed.dropped, IsEmpty());
}

// Of whole tables, and of parts of others.
TEST(RocksDbStoreTest, WhatIsRemovedOfARunIsGoneAndNothingElse) {
  const RocksDbBacking backing;
  constexpr uint32_t kEntries = 50;
  const auto all_there = [&](SequenceStore& store, const SequenceIdentity& sequence) {
    const auto read = store.Read(sequence);
    return read.ok() && read->entries.size() == kEntries;
  };
  auto store = Open(backing);
  for (uint32_t n = 0; n < kEntries; ++n) {
    for (uint64_t incarnation = 1; incarnation <= 4; ++incarnation) {
      for (const std::string id : {"a", "b"}) {
        const std::string rows(kMaxPayloadBytes, static_cast<char>(n));
        ASSERT_TRUE(AppendOne(*store, {"run", incarnation, id, 0}, n, Block(n, rows)).ok());
      }
    }
  }
  ASSERT_TRUE(store->DropIncarnations("run", 2, 4).ok());
  for (const bool after_restart : {false, true}) {
    if (after_restart) {
      store.reset();
      store = Open(backing);
    }
    EXPECT_THAT(List(*store).incarnations, ElementsAre(Pair("run", 1), Pair("run", 4)));
    for (const std::string id : {"a", "b"}) {
      for (const uint64_t incarnation : {1, 4}) {
        EXPECT_TRUE(all_there(*store, {"run", incarnation, id, 0}));
      }
      EXPECT_TRUE(absl::IsNotFound(store->Read({"run", 2, id, 0}).status()));
    }
  }
}

TEST(RocksDbStoreTest, ADeletedRunIsRememberedForAMonth) {
  RocksDbBacking backing;
  ASSERT_TRUE(Open(backing)->PutRun({"run", 3, 0, ""}).ok());
  const std::string key = RunKey("run");
  const absl::Time expires = ItemExpires(*backing.OpenItems()->Get({&key, 1})[0]);
  EXPECT_GT(expires, absl::Now() + absl::Hours(29 * 24));
  EXPECT_LT(expires, absl::Now() + absl::Hours(31 * 24));
}

// Calls `meanwhile` once, after the next Get.
class InterruptedItems final : public ItemsInMemory {
 public:
  using ItemsInMemory::ItemsInMemory;
  std::vector<absl::StatusOr<std::string>> Get(std::span<const std::string> keys) override {
    auto values = ItemsInMemory::Get(keys);
    if (meanwhile != nullptr) std::exchange(meanwhile, nullptr)();
    return values;
  }
  std::function<void()> meanwhile;
};

TEST(SequenceStoreTest, AWholeFormThatIsWrittenDuringAReadIsRead) {
  ItemMap map;
  auto items = std::make_unique<InterruptedItems>(map);
  InterruptedItems& interrupted = *items;
  SequenceStore store(std::move(items));
  ASSERT_TRUE(AppendOne(store, Sequence("a"), 0, Block(0, "rows")).ok());
  interrupted.meanwhile = [&] {
    EXPECT_TRUE(store.WriteWholeForm(Sequence("a"), 1, "form", absl::InfiniteFuture()).ok());
  };
  const absl::StatusOr<StoredSequence> read = store.Read(Sequence("a"));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->whole_form, "form");
}

TEST(SequenceStoreTest, NothingStaysOfWhatIsDroppedWhileItIsWritten) {
  ItemMap map;
  SequenceStore store(std::make_unique<ItemsInMemory>(map));
  constexpr int kSequences = 300;
  const auto name = [](int i) { return Sequence(absl::StrCat(i)); };
  std::thread writer([&] {
    for (int i = 0; i < kSequences; ++i) {
      AppendOne(store, name(i), 0, Block(0, "rows")).IgnoreError();
      store.WriteWholeForm(name(i), 1, "form", absl::InfiniteFuture()).IgnoreError();
    }
  });
  for (int i = 0; i < kSequences; ++i) EXPECT_TRUE(DropOne(store, name(i), kReleased).ok());
  writer.join();
  for (int i = 0; i < kSequences; ++i) {
    EXPECT_TRUE(store.RemoveDropped(name(i), absl::Now() + absl::Hours(24)).ok());
  }
  WriterLock lock(map.mutex);
  EXPECT_EQ(map.items.size(), kSequences) << "a reason each";
}

TEST(StoredItemTest, AStateHasAsManyFragmentsAsItsBytesTake) {
  for (const SequenceState& good :
       {SequenceState(), SequenceState{.dropped = 5, .entries = 7},
        SequenceState{.entries = 7, .form = 9, .fragments = 1, .bytes = kFragmentBytes},
        SequenceState{.entries = 7, .form = 9, .fragments = 2, .bytes = kFragmentBytes + 1}}) {
    EXPECT_EQ(*ParseState(EncodeState(good)), good);
  }
  for (const SequenceState& bad :
       {SequenceState{.fragments = UINT32_MAX, .bytes = 10}, SequenceState{.fragments = 1},
        SequenceState{.fragments = 1, .bytes = kFragmentBytes + 1},
        SequenceState{.fragments = 0, .bytes = UINT64_MAX},
        SequenceState{.dropped = kMissingReasons.size() + 1},
        SequenceState{.fragments = 131'073, .bytes = kMostFormBytes + 1}}) {
    EXPECT_TRUE(absl::IsDataLoss(ParseState(EncodeState(bad)).status())) << bad.fragments;
  }
}

TEST(RocksDbStoreTest, OneProcessAtATime) {
  const RocksDbBacking backing;
  const auto store = Open(backing);
  EXPECT_TRUE(absl::IsUnavailable(OpenStore(backing.description()).status()));
}

TEST(OpenStoreTest, ThereIsNoneForMemory) { EXPECT_EQ(*OpenStore("memory"), nullptr); }

TEST(OpenStoreTest, SaysWhatIsWrong) {
  for (const auto& [description, what] : std::vector<std::pair<std::string, std::string>>{
           {"", "neither memory"},
           {"redis:localhost", "neither memory"},
           {"rocksdb:", "not rocksdb:DIR"},
           {"rocksdb:/tmp/x?sync=2", "not rocksdb:DIR"},
       }) {
    const absl::Status status = OpenStore(description).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << description;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(what));
  }
}

}  // namespace
}  // namespace sis
