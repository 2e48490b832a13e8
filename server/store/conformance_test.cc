// What a durable store promises, against a real RocksDB.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <span>
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

class ConformanceTest : public ::testing::Test {
 protected:
  ConformanceTest() { Reopen(); }

  // As after a restart of the server.
  void Reopen() {
    store_.reset();
    store_ = Open(backing_);
  }

  // Flips one bit of a stored value.
  void Damage(const std::string& key, size_t byte) {
    store_.reset();
    {
      const std::unique_ptr<ItemStore> items = backing_.OpenItems();
      Item item{.key = key, .value = *items->Get({&key, 1})[0]};
      item.value[byte % item.value.size()] ^= 0x10;
      ASSERT_TRUE(items->Put({&item, 1}).ok());
    }
    store_ = Open(backing_);
  }

  // Removes one stored value behind the store's back.
  void Lose(const std::string& key) {
    store_.reset();
    ASSERT_EQ(*backing_.OpenItems()->Remove({&key, 1}), 1);
    store_ = Open(backing_);
  }

  RocksDbBacking backing_;
  std::unique_ptr<SequenceStore> store_;
};

TEST_F(ConformanceTest, WhatWasAddedIsReadBackBitByBit) {
  std::mt19937 random(1);
  // Empty, small, the largest; more than are read at once; ids of any bytes.
  const std::string odd_id("\0\xff sequence\n", 12);
  const std::string ids[] = {"a", odd_id, std::string(256, 'x')};
  std::map<std::string, std::vector<LogEntry>> added;
  for (const std::string& id : ids) {
    std::vector<LogEntry>& entries = added[id];
    for (uint32_t n = 0; n < 200; ++n) {
      const size_t size = n == 150 && id == "a" ? kMaxPayloadBytes : random() % 300;
      entries.push_back(Block(n * 10, RandomBytes(random, size)));
    }
    entries.push_back({LogEntry::Kind::kSeal, 1600});
    entries.push_back({LogEntry::Kind::kSeal, 1600, "annotated"});
    // One by one, and many at a time.
    ASSERT_TRUE(AppendOne(*store_, Sequence(id), 0, entries[0]).ok());
    const absl::Status status = store_->Append(Sequence(id), 1, std::span(entries).subspan(1));
    ASSERT_TRUE(status.ok()) << status;
  }

  for (const bool after_restart : {false, true}) {
    if (after_restart) Reopen();
    for (const auto& [id, entries] : added) {
      const auto read = store_->Read(Sequence(id));
      ASSERT_TRUE(read.ok()) << read.status();
      EXPECT_EQ(read->first_entry, 0);
      EXPECT_EQ(read->entries, entries);
      EXPECT_FALSE(read->whole_form.has_value());
    }
  }
}

TEST_F(ConformanceTest, SequencesAreTheirOwn) {
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

// A call that failed may have been done.
TEST_F(ConformanceTest, AnEntryThatIsWrittenAgainIsThereOnce) {
  for (int again = 0; again < 2; ++again) {
    ASSERT_TRUE(AppendOne(*store_, Sequence("a"), 0, Block(0, "rows")).ok());
    EXPECT_THAT(store_->Read(Sequence("a"))->entries, ElementsAre(Block(0, "rows")));
  }
}

TEST_F(ConformanceTest, AllEntriesAreWrittenOrNone) {
  const std::vector<LogEntry> entries = {Block(0, "rows"),
                                         Block(1, std::string(kMaxPayloadBytes + 1, 'x'))};
  EXPECT_TRUE(absl::IsInvalidArgument(store_->Append(Sequence("a"), 0, entries)));
  EXPECT_TRUE(absl::IsNotFound(store_->Read(Sequence("a")).status()));
}

TEST_F(ConformanceTest, ReadersSeeAPrefixWhileOthersAppendAndSeal) {
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
    if (seen == 0 && absl::IsNotFound(read.status())) continue;  // before the first entry
    EXPECT_TRUE(read.ok()) << read.status();
    if (!read.ok()) break;
    const uint32_t now = read->first_entry + static_cast<uint32_t>(read->entries.size());
    EXPECT_GE(now, seen);
    seen = now;
  }
  writer.join();
  EXPECT_EQ(store_->Read(Sequence("a"))->whole_form, "sealed");
}

TEST_F(ConformanceTest, TheWholeFormTakesThePlaceOfTheLog) {
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
    const std::string former = FragmentKey(prefix, Crc(form), 0);
    store_.reset();
    EXPECT_TRUE(absl::IsNotFound(backing_.OpenItems()->Get({&former, 1})[0].status()));
    store_ = Open(backing_);
  }
}

TEST_F(ConformanceTest, WhatWasDroppedIsGoneButForTheReason) {
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
        EXPECT_TRUE(absl::IsFailedPrecondition(again)) << again;
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
      const std::unique_ptr<ItemStore> items = backing_.OpenItems();
      for (uint32_t n = 0; n < 101; ++n) {
        const std::string key = EntryKey(prefix, n);
        EXPECT_TRUE(absl::IsNotFound(items->Get({&key, 1})[0].status())) << n;
      }
    }
    store_ = Open(backing_);
  }
}

TEST_F(ConformanceTest, OnlyWhatWasThereIsThere) {
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

TEST_F(ConformanceTest, ManyAreDroppedAtOnce) {
  std::vector<DroppedSequence> dropped;
  for (int i = 0; i < 100; ++i) {
    dropped.push_back(
        {Sequence(absl::StrCat(i)), static_cast<uint8_t>(i % 2 == 0 ? 4 : kReleased)});
    if (i % 3 == 0) {
      ASSERT_TRUE(AppendOne(*store_, dropped[i].sequence, 0, Block(0, "rows")).ok());
    }
  }
  ASSERT_TRUE(store_->Drop(dropped).ok());
  Reopen();
  for (const auto& [sequence, reason] : dropped) {
    EXPECT_EQ(store_->Read(sequence)->dropped, reason);
  }
}

TEST_F(ConformanceTest, WhatHasExpiredIsNotThere) {
  const absl::Time long_past[] = {absl::Now() - absl::Seconds(10), absl::FromUnixSeconds(-5),
                                  absl::UnixEpoch(), absl::FromUnixSeconds(100),
                                  absl::FromUnixSeconds(30 * 24 * 3600)};
  for (const absl::Time expires : long_past) {
    const LogEntry expired = Block(0, "rows");
    EXPECT_TRUE(store_->Append(Sequence("a"), 0, {&expired, 1}, expires).ok());
    EXPECT_TRUE(absl::IsNotFound(store_->Read(Sequence("a")).status())) << expires;
  }
  EXPECT_TRUE(AppendOne(*store_, Sequence("b"), 0, Block(0, "rows")).ok());
  // So a reason is kept for a while only.
  EXPECT_TRUE(DropOne(*store_, Sequence("b"), kReleased).ok());
  EXPECT_TRUE(store_->RemoveDropped(Sequence("b"), absl::Now() - absl::Seconds(10)).ok());
  EXPECT_FALSE(store_->Read(Sequence("b")).ok());
}

// Also beyond what 32 bits can say.
TEST_F(ConformanceTest, WhatExpiresInManyYearsIsThere) {
  const absl::Time years_ahead[] = {absl::Now() + absl::Hours(100 * 24),
                                    absl::FromUnixSeconds((int64_t{1} << 31) - 1),
                                    absl::FromUnixSeconds(int64_t{1} << 31),
                                    absl::FromUnixSeconds((int64_t{1} << 32) + 5),
                                    absl::Now() + absl::Hours(24 * 365 * 100'000),
                                    absl::FromUnixSeconds(std::numeric_limits<int64_t>::max()),
                                    absl::InfiniteFuture()};
  for (const absl::Time expires : years_ahead) {
    const SequenceIdentity sequence = Sequence(absl::FormatTime(expires, absl::UTCTimeZone()));
    const LogEntry kept = Block(0, "rows");
    EXPECT_TRUE(store_->Append(sequence, 0, {&kept, 1}, expires).ok());
    EXPECT_TRUE(store_->Read(sequence).ok()) << expires;
  }
}

TEST_F(ConformanceTest, ADamagedEntryIsNeverServed) {
  const std::string prefix = SequencePrefix(Sequence("a"));
  for (uint32_t n = 0; n < 3; ++n) {
    ASSERT_TRUE(AppendOne(*store_, Sequence("a"), n, Block(n, "some rows")).ok());
  }
  const std::string key = EntryKey(prefix, 1);
  const size_t size =
      WrapItem(key, absl::InfiniteFuture(), EncodeEntry(Block(1, "some rows"))).size();
  for (size_t byte = 0; byte < size; byte += 7) {
    if (byte >= 8 && byte < 16) continue;  // when it expires: it is gone then
    Damage(key, byte);
    EXPECT_TRUE(absl::IsDataLoss(store_->Read(Sequence("a")).status())) << byte;
    Damage(key, byte);
  }
  EXPECT_TRUE(store_->Read(Sequence("a")).ok());
}

TEST_F(ConformanceTest, ADamagedWholeFormIsNeverServed) {
  const SequenceIdentity sequence = Sequence("a");
  const std::string prefix = SequencePrefix(sequence);
  const std::string form((1 << 20) + 5, 'f');
  ASSERT_TRUE(AppendOne(*store_, sequence, 0, Block(0, "rows")).ok());
  ASSERT_TRUE(store_->WriteWholeForm(sequence, 1, form, absl::InfiniteFuture()).ok());
  const std::string fragment = FragmentKey(prefix, Crc(form), 2);
  for (const std::string& key : {fragment, StateKey(prefix)}) {
    Damage(key, 1000003);
    EXPECT_TRUE(absl::IsDataLoss(store_->Read(sequence).status()));
    Damage(key, 1000003);
  }
  EXPECT_TRUE(store_->Read(sequence).ok());
  Lose(fragment);
  EXPECT_TRUE(absl::IsDataLoss(store_->Read(sequence).status()));
}

TEST_F(ConformanceTest, AValueUnderAnotherKeyIsNotServed) {
  const std::string prefix = SequencePrefix(Sequence("a"));
  for (uint32_t n = 0; n < 2; ++n) {
    ASSERT_TRUE(AppendOne(*store_, Sequence("a"), n, Block(n, "rows")).ok());
  }
  store_.reset();
  {
    const std::unique_ptr<ItemStore> items = backing_.OpenItems();
    const std::string first = EntryKey(prefix, 0);
    const Item swapped{.key = EntryKey(prefix, 1), .value = *items->Get({&first, 1})[0]};
    ASSERT_TRUE(items->Put({&swapped, 1}).ok());
  }
  store_ = Open(backing_);
  EXPECT_TRUE(absl::IsDataLoss(store_->Read(Sequence("a")).status()));
}

TEST_F(ConformanceTest, ALogWithAHoleIsNoLog) {
  for (const uint32_t hole : {0, 1, 63, 64, 65, 98}) {
    const SequenceIdentity sequence = Sequence(absl::StrCat("hole ", hole));
    const std::string prefix = SequencePrefix(sequence);
    for (uint32_t n = 0; n < 100; ++n) {
      ASSERT_TRUE(AppendOne(*store_, sequence, n, Block(n, "rows")).ok());
    }
    Lose(EntryKey(prefix, hole));
    EXPECT_TRUE(absl::IsDataLoss(store_->Read(sequence).status())) << hole;
  }
}

TEST_F(ConformanceTest, TheNewestRunRecordStays) {
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

TEST_F(ConformanceTest, ADamagedRunRecordIsNeverServedAndStandsInNobodysWay) {
  const StoredRun run{"run", 3, 5, "config"}, next{"run", 1, 0, "another config"};
  ASSERT_TRUE(store_->PutRun(run).ok());
  const std::string key = RunKey("run");
  const size_t size = WrapItem(key, absl::InfiniteFuture(), EncodeRun(run)).size();
  for (size_t byte = 0; byte < size; byte += 5) {
    if (byte >= 8 && byte < 16) continue;  // when it expires: it is gone then
    Damage(key, byte);
    EXPECT_TRUE(absl::IsDataLoss(store_->GetRun("run").status())) << byte;
    const ListedRuns listed = *store_->ListRuns();
    EXPECT_THAT(listed.runs, IsEmpty());
    ASSERT_EQ(listed.unreadable.size(), 1);
    EXPECT_EQ(listed.unreadable[0].first, "run");
    Damage(key, byte);
  }
  EXPECT_EQ(*store_->GetRun("run"), run);
  Damage(key, size - 1);
  EXPECT_EQ(*store_->PutRun(next), next);
  EXPECT_EQ(*store_->GetRun("run"), next);
}

TEST_F(ConformanceTest, OfManyWritersOfARunTheNewestWins) {
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
