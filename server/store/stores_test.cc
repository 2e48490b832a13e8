// What the stores promise each for itself, and how they are named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
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
        const std::string rows(kMaxRowBytes, static_cast<char>(n));
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
  const ItemKey key{RunKey("run"), RunKey("run")};
  const absl::Time expires = ItemExpires(*backing.OpenItems()->Get({&key, 1})[0]);
  EXPECT_GT(expires, absl::Now() + absl::Hours(29 * 24));
  EXPECT_LT(expires, absl::Now() + absl::Hours(31 * 24));
}

// Items that others may write, too. Does something else after the next look at them.
class InterruptedItems final : public ItemsInMemory {
 public:
  using ItemsInMemory::ItemsInMemory;
  bool shared() const override { return true; }
  std::vector<absl::StatusOr<std::string>> Get(std::span<const ItemKey> keys) override {
    auto values = ItemsInMemory::Get(keys);
    if (meanwhile != nullptr) std::exchange(meanwhile, nullptr)();
    return values;
  }
  std::function<void()> meanwhile;
};

TEST(SequenceStoreTest, NothingStaysOfAWholeFormThatIsWrittenDuringADrop) {
  ItemMap map;
  auto items = std::make_unique<InterruptedItems>(map);
  InterruptedItems& interrupted = *items;
  SequenceStore store(std::move(items));
  SequenceStore other(std::make_unique<ItemsInMemory>(map));
  for (const std::string id : {"a", "b"}) {
    ASSERT_TRUE(AppendOne(store, Sequence(id), 0, Block(0, "rows")).ok());
  }
  interrupted.meanwhile = [&] {
    EXPECT_TRUE(other.WriteWholeForm(Sequence("a"), 1, "form", absl::InfiniteFuture()).ok());
  };
  const std::vector<DroppedSequence> dropped = {{Sequence("a"), kReleased},
                                                {Sequence("b"), kReleased}};
  EXPECT_THAT(store.Drop(dropped), ElementsAre(absl::OkStatus(), absl::OkStatus()));
  for (const DroppedSequence& each : dropped) {
    EXPECT_TRUE(store.RemoveDropped(each.sequence, absl::Now() + absl::Hours(24)).ok());
  }
  WriterLock lock(map.mutex);
  EXPECT_EQ(map.items.size(), dropped.size()) << "a reason each";
}

// Whether another server adds to it before, between any two steps, or afterwards.
TEST(SequenceStoreTest, WhatIsDroppedAsStaleIsNoMoreThanWhatWasKnown) {
  for (const int looks : {0, 1, 2, 3}) {
    SCOPED_TRACE(looks);
    ItemMap map;
    auto items = std::make_unique<InterruptedItems>(map);
    InterruptedItems& interrupted = *items;
    SequenceStore store(std::move(items)), other(std::make_unique<InterruptedItems>(map));
    for (uint32_t n = 0; n < 3; ++n) {
      ASSERT_TRUE(AppendOne(store, Sequence("a"), n, Block(n, "rows")).ok());
    }
    std::function<void()> next = [&] {
      EXPECT_TRUE(AppendOne(other, Sequence("a"), 3, Block(3, "newer")).ok());
    };
    for (int look = 1; look < looks; ++look) {
      next = [&interrupted, then = next] { interrupted.meanwhile = then; };
    }
    if (looks == 0) {
      next();
    } else if (looks < 3) {
      interrupted.meanwhile = next;
    }
    for (int again = 0; again < 2; ++again) {
      ASSERT_TRUE(store.DropStale(Sequence("a"), 3, absl::InfiniteFuture()).ok());
    }
    if (looks == 3) {
      EXPECT_EQ(store.Read(Sequence("a"))->dropped, kStale);
      EXPECT_EQ(store.Read(Sequence("a"), 3)->dropped, kStale);
      EXPECT_FALSE(*store.Has(Sequence("a")));
      EXPECT_TRUE(absl::IsAlreadyExists(AppendOne(other, Sequence("a"), 0, Block(0, "rows"))));
      WriterLock lock(map.mutex);
      EXPECT_EQ(map.items.size(), 1) << "a reason";
    }
    if (looks == 3) AppendOne(other, Sequence("a"), 3, Block(3, "newer")).IgnoreError();
    const absl::StatusOr<StoredSequence> read = store.Read(Sequence("a"));
    ASSERT_TRUE(read.ok()) << read.status();
    const bool in_time = looks < 2;
    EXPECT_EQ(read->dropped, std::nullopt);
    EXPECT_EQ(read->whole_form, in_time ? std::nullopt : std::optional<std::string>(""));
    EXPECT_EQ(read->entries.size(), in_time ? 4 : 1);
    EXPECT_EQ(read->entries.back().payload, "newer");
    EXPECT_EQ(store.Read(Sequence("a"), 4)->entries.size(), 0) << "who has all hears of nothing";
    EXPECT_TRUE(*store.Has(Sequence("a")));
    EXPECT_THAT(store.WhyDropped(std::vector{Sequence("a")}),
                ElementsAre(absl::StatusOr<std::optional<uint8_t>>(std::nullopt)));
    ASSERT_TRUE(DropOne(store, Sequence("a"), kReleased).ok());
    EXPECT_EQ(store.Read(Sequence("a"))->dropped, kReleased);
    EXPECT_TRUE(absl::IsFailedPrecondition(AppendOne(other, Sequence("a"), 4, Block(4, "rows"))));
  }
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
        SequenceState{.fragments = 0, .bytes = UINT64_MAX}, SequenceState{.dropped = 8},
        SequenceState{.fragments = 131'073, .bytes = kMostFormBytes + 1}}) {
    EXPECT_TRUE(absl::IsDataLoss(ParseState(EncodeState(bad)).status())) << bad.fragments;
  }
}

TEST(RocksDbStoreTest, OneProcessAtATime) {
  const RocksDbBacking backing;
  const auto store = Open(backing);
  EXPECT_TRUE(absl::IsUnavailable(OpenStore(backing.description()).status()));
}

TEST(MemcachedStoreTest, ANodeThatIsDownCostsItsShareAndRecovers) {
  constexpr int kSequences = 60;
  MemcachedBacking backing;
  const auto store = Open(backing);
  const auto name = [](int i) { return Sequence(absl::StrCat("sequence ", i)); };
  for (int i = 0; i < kSequences; ++i) {
    ASSERT_TRUE(AppendOne(*store, name(i), 0, Block(0, "rows")).ok());
  }
  backing.node(1).Kill();
  for (int i = 0; i < kSequences; ++i) {
    // Each time with connections that don't know yet: no answer is never taken for "not there".
    const std::string prefix = SequencePrefix(name(i));
    const ItemKey key{prefix, EntryKey(prefix, 0)};
    EXPECT_FALSE(absl::IsNotFound(backing.OpenItems()->Get({&key, 1})[0].status()));
  }
  std::vector<int> down;
  for (int i = 0; i < kSequences; ++i) {
    const absl::Status read = store->Read(name(i)).status();
    const absl::Status appended = AppendOne(*store, name(i), 1, Block(1, "rows"));
    if (read.ok()) {
      EXPECT_TRUE(appended.ok()) << appended;
    } else {
      EXPECT_TRUE(absl::IsUnavailable(read)) << read;
      EXPECT_TRUE(absl::IsUnavailable(appended)) << appended;
      down.push_back(i);
    }
  }
  EXPECT_GT(down.size(), 0);
  EXPECT_LT(down.size(), kSequences);

  backing.node(1).Start();
  for (const int i : down) {
    // It comes back empty: what it held is lost, and known to be, not "never there".
    absl::Status read;
    while (absl::IsUnavailable(read = store->Read(name(i)).status())) {
    }
    EXPECT_TRUE(absl::IsResourceExhausted(read)) << read;
    EXPECT_TRUE(AppendOne(*store, Sequence(absl::StrCat("new ", i)), 0, Block(0, "rows")).ok());
  }
}

// The other node, for the witness, may have a hundredth of the keys, or none.
TEST(MemcachedStoreTest, AnyWeightsDo) {
  constexpr int kSequences = 50;
  for (const auto& [light, heavy] : {std::pair(1, 1), {1, 20}, {1, 100}, {1, 1000}, {0, 1}}) {
    MemcachedBacking backing;
    std::string description = absl::StrCat("memcached:", backing.node(0).socket(), "*", heavy);
    if (light > 0) absl::StrAppend(&description, ",", backing.node(1).socket(), "*", light);
    const std::unique_ptr<SequenceStore> store = *OpenStore(description);
    const auto name = [](int i) { return Sequence(absl::StrCat("sequence ", i)); };
    for (int i = 0; i < kSequences; ++i) {
      ASSERT_TRUE(AppendOne(*store, name(i), 0, Block(0, "rows")).ok());
      EXPECT_TRUE(store->Read(name(i)).ok());
      EXPECT_TRUE(absl::IsNotFound(store->Read(Sequence(absl::StrCat("none ", i))).status()));
    }
    if (light == 0 || heavy > 20) continue;
    // Where both have a share, each is a witness to what the other has lost.
    backing.node(0).Kill();
    backing.node(0).Start();
    int lost = 0;
    for (int i = 0; i < kSequences; ++i) {
      absl::Status read;
      while (absl::IsUnavailable(read = store->Read(name(i)).status())) {
      }
      EXPECT_TRUE(read.ok() || absl::IsResourceExhausted(read)) << read;
      lost += !read.ok();
    }
    EXPECT_GT(lost, 0);
  }
}

TEST(MemcachedStoreTest, AnyReplicaAnswers) {
  MemcachedBacking backing;
  const auto here = Open(backing), there = Open(backing);
  for (uint32_t n = 0; n < 20; ++n) {
    for (int i = 0; i < 10; ++i) {
      const SequenceIdentity sequence = Sequence(absl::StrCat(i));
      ASSERT_TRUE(AppendOne(n % 2 == 0 ? *here : *there, sequence, n, Block(n, "rows")).ok());
      EXPECT_EQ((n % 2 == 0 ? *there : *here).Read(sequence)->entries.size(), n + 1);
    }
  }
}

TEST(OpenStoreTest, ThereIsNoneForMemory) { EXPECT_EQ(*OpenStore("memory"), nullptr); }

TEST(OpenStoreTest, SaysWhatIsWrong) {
  for (const auto& [description, what] : std::vector<std::pair<std::string, std::string>>{
           {"", "neither memory"},
           {"redis:localhost", "neither memory"},
           {"rocksdb:", "not rocksdb:DIR"},
           {"rocksdb:/tmp/x?sync=2", "not rocksdb:DIR"},
           {"memcached:", "''"},
           {"memcached:a", "'a': is not HOST:PORT"},
           {"memcached:[]:1", "'[]:1': is not HOST:PORT"},
           {"memcached:a:0", "'a:0': the port"},
           {"memcached:a:65536", "the port"},
           {"memcached:a:1*0", "the weight"},
           {"memcached:a:1*2x", "the weight"},
           {"memcached:a:1,,b:2", "''"},
           {"memcached:a:1,b:2,a:1*3", "named twice"},
       }) {
    const absl::Status status = OpenStore(description).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << description;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(what));
  }
  EXPECT_TRUE(OpenStore("memcached:localhost:11211*2,/tmp/socket*3,[::1]:5").ok());
}

}  // namespace
}  // namespace sis
