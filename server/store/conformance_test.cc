// What every durable store promises, against a real RocksDB and three real memcached nodes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/numerics/crc32c.h"
#include "server/store/stored_item.h"
#include "server/testing/backing.h"
#include "server/testing/stored_entries.h"

namespace sis {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string RandomBytes(std::mt19937& random, size_t count) {
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

uint32_t Crc(const std::string& bytes) { return ExtendCrc32c(0, std::as_bytes(std::span(bytes))); }

absl::Time Tomorrow() { return absl::Now() + absl::Hours(24); }

class ConformanceTest : public ::testing::TestWithParam<std::string> {
 protected:
  ConformanceTest() {
    if (GetParam() == "rocksdb") {
      backing_ = std::make_unique<RocksDbBacking>();
    } else {
      backing_ = std::make_unique<MemcachedBacking>();
    }
    Reopen();
  }

  // As after a restart of the server.
  void Reopen() {
    store_.reset();
    store_ = Open(*backing_);
  }

  // Flips one bit of a stored value.
  void Damage(const ItemKey& key, size_t byte) {
    store_.reset();
    {
      const std::unique_ptr<ItemStore> items = backing_->OpenItems();
      Item item{.key = key, .value = *items->Get({&key, 1})[0]};
      item.value[byte % item.value.size()] ^= 0x10;
      ASSERT_TRUE(items->Put({&item, 1})[0].ok());
    }
    store_ = Open(*backing_);
  }

  // Removes one stored value behind the store's back.
  void Lose(const ItemKey& key) {
    store_.reset();
    ASSERT_EQ(*backing_->OpenItems()->Remove({&key, 1}), 1);
    store_ = Open(*backing_);
  }

  // What is gone was forgotten for want of room, or, by a store that forgets nothing, damaged.
  absl::StatusCode Lost() const {
    return GetParam() == "memcached" ? absl::StatusCode::kResourceExhausted
                                     : absl::StatusCode::kDataLoss;
  }

  std::unique_ptr<Backing> backing_;
  std::unique_ptr<SequenceStore> store_;
};

INSTANTIATE_TEST_SUITE_P(Stores, ConformanceTest, ::testing::Values("rocksdb", "memcached"),
                         [](const auto& info) { return info.param; });

TEST_P(ConformanceTest, WhatWasAddedIsReadBackBitByBit) {
  std::mt19937 random(1);
  std::vector<NewEntry> added;
  // Empty, small, the largest; more than are read at once; ids of any bytes.
  const std::string odd_id("\0\xff sequence\n", 12);
  for (uint32_t n = 0; n < 200; ++n) {
    for (const std::string& id : {std::string("a"), odd_id, std::string(256, 'x')}) {
      const size_t size = n == 150 && id == "a" ? kMaxRowBytes : random() % 300;
      added.push_back({Sequence(id), n, Block(n * 10, RandomBytes(random, size))});
    }
  }
  added.push_back({Sequence("a"), 200, {LogEntry::Kind::kTruncate, 1500}});
  added.push_back({Sequence("a"), 201, {LogEntry::Kind::kSeal, 1600}});
  added.push_back({Sequence("a"), 202, {LogEntry::Kind::kSeal, 1600, 0, "annotated"}});
  for (const absl::Status& status : store_->Append(added)) ASSERT_TRUE(status.ok()) << status;

  for (const bool after_restart : {false, true}) {
    if (after_restart) Reopen();
    for (const std::string& id : {std::string("a"), odd_id, std::string(256, 'x')}) {
      std::vector<LogEntry> expected;
      for (const NewEntry& entry : added) {
        if (entry.sequence == Sequence(id)) expected.push_back(entry.entry);
      }
      const auto read = store_->Read(Sequence(id));
      ASSERT_TRUE(read.ok()) << read.status();
      EXPECT_EQ(read->first_entry, 0);
      EXPECT_EQ(read->entries, expected);
      EXPECT_FALSE(read->whole_form.has_value());
      const auto tail = store_->Read(Sequence(id), 70);
      ASSERT_TRUE(tail.ok()) << tail.status();
      EXPECT_EQ(tail->first_entry, 70);
      EXPECT_EQ(tail->entries, std::vector(expected.begin() + 70, expected.end()));
    }
  }
}

TEST_P(ConformanceTest, SequencesAreTheirOwn) {
  const SequenceIdentity base = Sequence("a");
  std::vector<SequenceIdentity> others(5, base);
  others[0].run_id = "run2";
  others[1].incarnation = 4;
  others[2].id = "b";
  others[3].attempt = 2;
  others[4].id = "";
  ASSERT_TRUE(AppendOne(*store_, base, 0, Block(0, "rows")).ok());
  for (const SequenceIdentity& other : others) {
    EXPECT_TRUE(absl::IsNotFound(store_->Read(other).status())) << ToString(other);
  }
}

TEST_P(ConformanceTest, ASecondAddChangesNothing) {
  ASSERT_TRUE(AppendOne(*store_, Sequence("a"), 0, Block(0, "first")).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(AppendOne(*store_, Sequence("a"), 0, Block(0, "second"))));
  EXPECT_THAT(store_->Read(Sequence("a"))->entries, ElementsAre(Block(0, "first")));
}

TEST_P(ConformanceTest, AfterTheFirstThatFailsTheRestOfASequenceIsNotWritten) {
  ASSERT_TRUE(AppendOne(*store_, Sequence("a"), 0, Block(0, "there")).ok());
  const std::vector<NewEntry> added = {
      {Sequence("a"), 0, Block(0, "x")},
      {Sequence("b"), 0, Block(0, "y")},
      {Sequence("a"), 1, Block(1, "z")},
      {Sequence("b"), 1, Block(1, "w")},
      {Sequence("c"), 0, Block(0, std::string(kMaxRowBytes + 1, 'x'))}};
  const std::vector<absl::Status> statuses = store_->Append(added);
  EXPECT_TRUE(absl::IsAlreadyExists(statuses[0]));
  EXPECT_TRUE(statuses[1].ok());
  EXPECT_TRUE(absl::IsAlreadyExists(statuses[2]));
  EXPECT_TRUE(statuses[3].ok());
  EXPECT_TRUE(absl::IsInvalidArgument(statuses[4]));
  EXPECT_THAT(store_->Read(Sequence("a"))->entries, ElementsAre(Block(0, "there")));
  EXPECT_THAT(store_->Read(Sequence("b"))->entries, ElementsAre(Block(0, "y"), Block(1, "w")));
  EXPECT_TRUE(absl::IsNotFound(store_->Read(Sequence("c")).status()));
}

TEST_P(ConformanceTest, OfManyWritersOneWinsEachNumber) {
  constexpr int kWriters = 8, kEntriesEach = 20;
  std::vector<std::unique_ptr<SequenceStore>> replicas;
  if (GetParam() == "memcached") {
    for (int w = 0; w < kWriters; ++w) replicas.push_back(Open(*backing_));
  }
  std::vector<std::vector<uint32_t>> won(kWriters);
  std::vector<std::thread> writers;
  for (int w = 0; w < kWriters; ++w) {
    writers.emplace_back([&, w] {
      SequenceStore& store = replicas.empty() ? *store_ : *replicas[w];
      for (uint32_t number = 0; won[w].size() < kEntriesEach; ++number) {
        const absl::Status status =
            AppendOne(store, Sequence("a"), number, Block(number, absl::StrCat("of ", w)));
        if (status.ok()) won[w].push_back(number);
        if (!status.ok() && !absl::IsAlreadyExists(status)) return;
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  const auto read = store_->Read(Sequence("a"));
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->entries.size(), kWriters * kEntriesEach);
  for (int w = 0; w < kWriters; ++w) {
    ASSERT_EQ(won[w].size(), kEntriesEach);
    for (const uint32_t n : won[w]) {
      EXPECT_EQ(read->entries[n], Block(n, absl::StrCat("of ", w)));
    }
  }
}

TEST_P(ConformanceTest, ReadersSeeAPrefixWhileOthersAppendAndSeal) {
  constexpr uint32_t kEntries = 150;
  std::atomic<bool> done = false;
  std::thread writer([&] {
    for (uint32_t n = 0; n < kEntries; ++n) {
      EXPECT_TRUE(AppendOne(*store_, Sequence("a"), n, Block(n, "rows")).ok());
    }
    EXPECT_TRUE(
        store_->WriteWholeForm(Sequence("a"), kEntries, "sealed", absl::InfiniteFuture()).ok());
    done = true;
  });
  uint32_t seen = 0;
  while (!done) {
    const auto read = store_->Read(Sequence("a"));
    // Until the first entry is acked; one whose witness is there before it looks lost.
    if (seen == 0 &&
        (absl::IsNotFound(read.status()) || absl::IsResourceExhausted(read.status()))) {
      continue;
    }
    EXPECT_TRUE(read.ok()) << read.status();
    if (!read.ok()) break;
    const uint32_t now = read->first_entry + static_cast<uint32_t>(read->entries.size());
    EXPECT_GE(now, seen);
    seen = now;
  }
  writer.join();
  EXPECT_EQ(store_->Read(Sequence("a"))->whole_form, "sealed");
}

TEST_P(ConformanceTest, TheWholeFormTakesThePlaceOfTheLog) {
  std::mt19937 random(2);
  for (const size_t size : {size_t{0}, size_t{100}, size_t{3} << 20}) {
    const SequenceIdentity sequence = Sequence(absl::StrCat("of ", size));
    for (uint32_t n = 0; n < 5; ++n) {
      ASSERT_TRUE(AppendOne(*store_, sequence, n, Block(n, "rows")).ok());
    }
    const std::string form = RandomBytes(random, size);
    // Entry 4 came after the form was made.
    ASSERT_TRUE(store_->WriteWholeForm(sequence, 4, form, absl::InfiniteFuture()).ok());
    Reopen();
    const auto read = store_->Read(sequence);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_TRUE(read->whole_form == form);
    EXPECT_EQ(read->first_entry, 4);
    EXPECT_THAT(read->entries, ElementsAre(Block(4, "rows")));
    // Who knows all that the form stands for isn't sent it again.
    EXPECT_FALSE(store_->Read(sequence, 4)->whole_form.has_value());
    EXPECT_THAT(store_->Read(sequence, 5)->entries, IsEmpty());
    // A replica that hasn't noticed takes a number that is free again.
    EXPECT_TRUE(absl::IsAlreadyExists(AppendOne(*store_, sequence, 2, Block(9, "late"))));
    EXPECT_TRUE(AppendOne(*store_, sequence, 5, Block(9, "late")).ok());
    EXPECT_THAT(store_->Read(sequence)->entries, ElementsAre(Block(4, "rows"), Block(9, "late")));
    // One that stands for no more entries changes nothing.
    for (const uint32_t entries : {3, 4}) {
      EXPECT_TRUE(
          store_->WriteWholeForm(sequence, entries, form + "x", absl::InfiniteFuture()).ok());
      EXPECT_TRUE(store_->Read(sequence)->whole_form == form);
    }
    // One that stands for more takes its place, of whatever contents, and nothing of the former
    // stays.
    for (const auto& [entries, second] : {std::pair(5, form), std::pair(6, form + "x")}) {
      EXPECT_TRUE(store_->WriteWholeForm(sequence, entries, second, absl::InfiniteFuture()).ok());
      Reopen();
      EXPECT_TRUE(store_->Read(sequence)->whole_form == second);
      EXPECT_EQ(store_->Read(sequence)->first_entry, entries);
    }
    EXPECT_THAT(store_->Read(sequence)->entries, IsEmpty());
    const std::string prefix = SequencePrefix(sequence);
    const ItemKey former{prefix, FragmentKey(prefix, Crc(form), 0)};
    store_.reset();
    EXPECT_TRUE(absl::IsNotFound(backing_->OpenItems()->Get({&former, 1})[0].status()));
    store_ = Open(*backing_);
  }
}

TEST_P(ConformanceTest, WhatWasDroppedIsGoneButForTheReason) {
  for (const bool sealed : {false, true}) {
    const SequenceIdentity sequence = Sequence(sealed ? "sealed" : "open");
    for (uint32_t n = 0; n < 100; ++n) {
      ASSERT_TRUE(AppendOne(*store_, sequence, n, Block(n, "rows")).ok());
    }
    if (sealed) {
      ASSERT_TRUE(store_->WriteWholeForm(sequence, 90, "form", absl::InfiniteFuture()).ok());
    }
    EXPECT_TRUE(*store_->Has(sequence));
    ASSERT_TRUE(DropOne(*store_, sequence, kReleased).ok());
    EXPECT_TRUE(DropOne(*store_, sequence, 4).ok());
    for (const bool removed : {false, true}) {
      Reopen();
      if (removed) {
        ASSERT_TRUE(store_->RemoveDropped(sequence, Tomorrow()).ok());
      }
      EXPECT_FALSE(*store_->Has(sequence));
      const auto read = store_->Read(sequence);
      ASSERT_TRUE(read.ok()) << read.status();
      EXPECT_EQ(read->dropped, kReleased);
      EXPECT_THAT(read->entries, IsEmpty());
      EXPECT_FALSE(read->whole_form.has_value());
      for (const uint32_t number : {0, 95, 100}) {
        const absl::Status again = AppendOne(*store_, sequence, number, Block(0, "again"));
        EXPECT_TRUE(absl::IsFailedPrecondition(again) || (!removed && absl::IsAlreadyExists(again)))
            << again;
      }
      EXPECT_TRUE(absl::IsFailedPrecondition(
          store_->WriteWholeForm(sequence, 1, "form again", absl::InfiniteFuture())));
      EXPECT_TRUE(DropOne(*store_, sequence, 4).ok());
      EXPECT_EQ(store_->Read(sequence)->dropped, kReleased);
    }
    EXPECT_TRUE(store_->RemoveDropped(sequence, Tomorrow()).ok()) << "nothing more to do";

    const std::string prefix = SequencePrefix(sequence);
    store_.reset();
    {
      const std::unique_ptr<ItemStore> items = backing_->OpenItems();
      for (uint32_t n = 0; n < 101; ++n) {
        const ItemKey key{prefix, EntryKey(prefix, n)};
        EXPECT_TRUE(absl::IsNotFound(items->Get({&key, 1})[0].status())) << n;
      }
    }
    store_ = Open(*backing_);
  }
}

TEST_P(ConformanceTest, OnlyWhatWasThereIsThere) {
  EXPECT_FALSE(*store_->Has(Sequence("none")));
  EXPECT_TRUE(store_->RemoveDropped(Sequence("none"), Tomorrow()).ok());
  ASSERT_TRUE(AppendOne(*store_, Sequence("a"), 0, Block(0, "rows")).ok());
  EXPECT_TRUE(*store_->Has(Sequence("a")));
  EXPECT_TRUE(store_->RemoveDropped(Sequence("a"), Tomorrow()).ok()) << "it isn't dropped";
  EXPECT_TRUE(store_->Read(Sequence("a")).ok());
  // Who drops what never was there keeps others from writing it.
  ASSERT_TRUE(DropOne(*store_, Sequence("none"), kReleased).ok());
  EXPECT_FALSE(*store_->Has(Sequence("none")));
  EXPECT_TRUE(
      absl::IsFailedPrecondition(AppendOne(*store_, Sequence("none"), 0, Block(0, "rows"))));
}

TEST_P(ConformanceTest, ManyAreDroppedAtOnce) {
  std::vector<DroppedSequence> dropped;
  for (int i = 0; i < 100; ++i) {
    dropped.push_back(
        {Sequence(absl::StrCat(i)), static_cast<uint8_t>(i % 2 == 0 ? 4 : kReleased)});
    if (i % 3 == 0) {
      ASSERT_TRUE(AppendOne(*store_, dropped[i].sequence, 0, Block(0, "rows")).ok());
    }
  }
  const std::vector<absl::Status> statuses = store_->Drop(dropped);
  ASSERT_EQ(statuses.size(), dropped.size());
  Reopen();
  for (size_t i = 0; i < dropped.size(); ++i) {
    EXPECT_TRUE(statuses[i].ok()) << statuses[i];
    EXPECT_EQ(store_->Read(dropped[i].sequence)->dropped, dropped[i].reason);
  }
}

TEST_P(ConformanceTest, WhatHasExpiredIsNotThere) {
  const absl::Time long_past[] = {absl::Now() - absl::Seconds(10), absl::FromUnixSeconds(-5),
                                  absl::UnixEpoch(), absl::FromUnixSeconds(100),
                                  absl::FromUnixSeconds(30 * 24 * 3600)};
  for (const absl::Time expires : long_past) {
    const NewEntry expired{Sequence("a"), 0, Block(0, "rows"), expires};
    EXPECT_TRUE(store_->Append({&expired, 1})[0].ok());
    EXPECT_TRUE(absl::IsNotFound(store_->Read(Sequence("a")).status())) << expires;
  }
  EXPECT_TRUE(AppendOne(*store_, Sequence("b"), 0, Block(0, "rows")).ok());
  // So a reason is kept for a while only.
  EXPECT_TRUE(DropOne(*store_, Sequence("b"), kReleased).ok());
  EXPECT_TRUE(store_->RemoveDropped(Sequence("b"), absl::Now() - absl::Seconds(10)).ok());
  EXPECT_FALSE(store_->Read(Sequence("b")).ok());
}

// Also beyond what 32 bits can say, which memcached would take for long past.
TEST_P(ConformanceTest, WhatExpiresInManyYearsIsThere) {
  const absl::Time years_ahead[] = {absl::Now() + absl::Hours(100 * 24),
                                    absl::FromUnixSeconds((int64_t{1} << 31) - 1),
                                    absl::FromUnixSeconds(int64_t{1} << 31),
                                    absl::FromUnixSeconds((int64_t{1} << 32) + 5),
                                    absl::Now() + absl::Hours(24 * 365 * 100'000),
                                    absl::FromUnixSeconds(std::numeric_limits<int64_t>::max()),
                                    absl::InfiniteFuture()};
  for (const absl::Time expires : years_ahead) {
    const SequenceIdentity sequence = Sequence(absl::FormatTime(expires, absl::UTCTimeZone()));
    const NewEntry kept{sequence, 0, Block(0, "rows"), expires};
    EXPECT_TRUE(store_->Append({&kept, 1})[0].ok());
    EXPECT_TRUE(store_->Read(sequence).ok()) << expires;
  }
}

TEST_P(ConformanceTest, ADamagedEntryIsNeverServed) {
  const std::string prefix = SequencePrefix(Sequence("a"));
  for (uint32_t n = 0; n < 3; ++n) {
    ASSERT_TRUE(AppendOne(*store_, Sequence("a"), n, Block(n, "some rows")).ok());
  }
  const ItemKey key{prefix, EntryKey(prefix, 1)};
  const size_t size =
      WrapItem(key.key, absl::InfiniteFuture(), EncodeEntry(Block(1, "some rows"))).size();
  for (size_t byte = 0; byte < size; byte += 7) {
    if (byte >= 8 && byte < 16) continue;  // when it expires: it is gone then
    Damage(key, byte);
    EXPECT_TRUE(absl::IsDataLoss(store_->Read(Sequence("a")).status())) << byte;
    Damage(key, byte);
  }
  EXPECT_TRUE(store_->Read(Sequence("a")).ok());
}

TEST_P(ConformanceTest, ADamagedWholeFormIsNeverServed) {
  const SequenceIdentity sequence = Sequence("a");
  const std::string prefix = SequencePrefix(sequence);
  const std::string form((1 << 20) + 5, 'f');
  ASSERT_TRUE(AppendOne(*store_, sequence, 0, Block(0, "rows")).ok());
  ASSERT_TRUE(store_->WriteWholeForm(sequence, 1, form, absl::InfiniteFuture()).ok());
  const ItemKey fragment{prefix, FragmentKey(prefix, Crc(form), 2)};
  const ItemKey state{prefix, StateKey(prefix)};
  for (const ItemKey& key : {fragment, state}) {
    Damage(key, 1000003);
    EXPECT_TRUE(absl::IsDataLoss(store_->Read(sequence).status()));
    Damage(key, 1000003);
  }
  EXPECT_TRUE(store_->Read(sequence).ok());
  Lose(fragment);
  EXPECT_EQ(store_->Read(sequence).status().code(), Lost());
}

TEST_P(ConformanceTest, AValueUnderAnotherKeyIsNotServed) {
  const std::string prefix = SequencePrefix(Sequence("a"));
  for (uint32_t n = 0; n < 2; ++n) {
    ASSERT_TRUE(AppendOne(*store_, Sequence("a"), n, Block(n, "rows")).ok());
  }
  store_.reset();
  {
    const std::unique_ptr<ItemStore> items = backing_->OpenItems();
    const ItemKey first{prefix, EntryKey(prefix, 0)}, second{prefix, EntryKey(prefix, 1)};
    const Item swapped{.key = second, .value = *items->Get({&first, 1})[0]};
    ASSERT_TRUE(items->Put({&swapped, 1})[0].ok());
  }
  store_ = Open(*backing_);
  EXPECT_TRUE(absl::IsDataLoss(store_->Read(Sequence("a")).status()));
}

TEST_P(ConformanceTest, ALogWithAHoleIsNoLog) {
  for (const uint32_t hole : {0, 1, 63, 64, 65, 98}) {
    const SequenceIdentity sequence = Sequence(absl::StrCat("hole ", hole));
    const std::string prefix = SequencePrefix(sequence);
    for (uint32_t n = 0; n < 100; ++n) {
      ASSERT_TRUE(AppendOne(*store_, sequence, n, Block(n, "rows")).ok());
    }
    Lose({prefix, EntryKey(prefix, hole)});
    EXPECT_EQ(store_->Read(sequence).status().code(), Lost()) << hole;
  }
}

TEST_P(ConformanceTest, WhyManyWereDroppedIsToldAtOnce) {
  std::vector<SequenceIdentity> sequences;
  for (int i = 0; i < 300; ++i) sequences.push_back(Sequence(absl::StrCat(i)));
  for (int i = 0; i < 300; ++i) {
    if (i % 3 == 0) continue;  // of which nothing is stored
    ASSERT_TRUE(AppendOne(*store_, sequences[i], 0, Block(0, "rows")).ok());
    if (i % 2 == 0) {
      ASSERT_TRUE(store_->WriteWholeForm(sequences[i], 1, "form", absl::InfiniteFuture()).ok());
    }
    if (i % 5 == 0) {
      ASSERT_TRUE(DropOne(*store_, sequences[i], kReleased).ok());
    }
    if (i % 25 == 0) {
      ASSERT_TRUE(store_->RemoveDropped(sequences[i], Tomorrow()).ok());
    }
  }
  const auto reasons = store_->WhyDropped(sequences);
  ASSERT_EQ(reasons.size(), sequences.size());
  for (int i = 0; i < 300; ++i) {
    ASSERT_TRUE(reasons[i].ok()) << reasons[i].status();
    const bool dropped = i % 3 != 0 && i % 5 == 0;
    EXPECT_EQ(*reasons[i], dropped ? std::optional(kReleased) : std::nullopt) << i;
  }
  EXPECT_THAT(store_->WhyDropped({}), IsEmpty());
  const std::string prefix = SequencePrefix(sequences[5]);
  Damage({prefix, StateKey(prefix)}, 1000003);
  EXPECT_TRUE(absl::IsDataLoss(store_->WhyDropped({&sequences[5], 1})[0].status()));
}

TEST_P(ConformanceTest, TheEndOfALeaseIsRememberedForAWhile) {
  const LeaseIdentity ended[] = {{"run", 3, 7}, {"run", 3, ~uint64_t{0}}};
  const LeaseIdentity asked[] = {ended[0], {"run", 3, 8}, {"run", 4, 7}, {"run2", 3, 7}, ended[1]};
  for (const absl::Status& status : store_->EndLeases(ended, Tomorrow())) EXPECT_TRUE(status.ok());
  EXPECT_TRUE(store_->EndLeases({ended, 1}, Tomorrow())[0].ok()) << "a second time";
  std::vector<bool> found;
  for (const absl::StatusOr<bool>& has_ended : store_->HaveEnded(asked)) {
    ASSERT_TRUE(has_ended.ok()) << has_ended.status();
    found.push_back(*has_ended);
  }
  EXPECT_THAT(found, ElementsAre(true, false, false, false, true));
  const LeaseIdentity forgotten{"run", 3, 9};
  EXPECT_TRUE(store_->EndLeases({&forgotten, 1}, absl::Now() - absl::Seconds(10))[0].ok());
  EXPECT_FALSE(*store_->HaveEnded({&forgotten, 1})[0]);
}

TEST_P(ConformanceTest, TheNewestRunRecordStays) {
  EXPECT_TRUE(absl::IsNotFound(store_->GetRun("run").status()));
  const StoredRun first{"run", 1, 5, "config"}, newer{"run", 1, 6, "config"},
      next{"run", 2, 0, "another config"}, other{"run2", 1, 0, std::string("\0\xff", 2)};
  EXPECT_EQ(*store_->PutRun(first), first);
  EXPECT_EQ(*store_->PutRun(newer), newer);
  EXPECT_EQ(*store_->PutRun(first), newer);
  EXPECT_EQ(*store_->PutRun(next), next);
  EXPECT_EQ(*store_->PutRun(newer), next);
  EXPECT_EQ(*store_->PutRun(other), other);
  Reopen();
  EXPECT_EQ(*store_->GetRun("run"), next);
  EXPECT_EQ(*store_->GetRun("run2"), other);
}

TEST_P(ConformanceTest, ADamagedRunRecordIsNeverServedAndStandsInNobodysWay) {
  const StoredRun run{"run", 3, 5, "config"}, next{"run", 1, 0, "another config"};
  ASSERT_TRUE(store_->PutRun(run).ok());
  const ItemKey key{RunKey("run"), RunKey("run")};
  const size_t size = WrapItem(key.key, absl::InfiniteFuture(), EncodeRun(run)).size();
  for (size_t byte = 0; byte < size; byte += 5) {
    if (byte >= 8 && byte < 16) continue;  // when it expires: it is gone then
    Damage(key, byte);
    EXPECT_TRUE(absl::IsDataLoss(store_->GetRun("run").status())) << byte;
    if (GetParam() == "rocksdb") {
      const ListedRuns listed = *store_->ListRuns();
      EXPECT_THAT(listed.runs, IsEmpty());
      ASSERT_EQ(listed.unreadable.size(), 1);
      EXPECT_EQ(listed.unreadable[0].first, "run");
    }
    Damage(key, byte);
  }
  EXPECT_EQ(*store_->GetRun("run"), run);
  Damage(key, size - 1);
  EXPECT_EQ(*store_->PutRun(next), next);
  EXPECT_EQ(*store_->GetRun("run"), next);
}

TEST_P(ConformanceTest, OfManyWritersOfARunTheNewestWins) {
  std::vector<std::thread> writers;
  for (uint64_t w = 0; w < 8; ++w) {
    writers.emplace_back([&, w] {
      for (uint64_t version = w; version < 200; version += 8) {
        EXPECT_TRUE(store_->PutRun({"run", 1, version, "config"}).ok());
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(store_->GetRun("run")->policy_version, 199);
}

}  // namespace
}  // namespace sis
