// The promises of every store (server/store/store.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/block/block.h"
#include "server/testing/backing.h"
#include "server/testing/redis_servers.h"
#include "server/testing/store_parts.h"

namespace sis {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

constexpr absl::Time kNever = absl::InfiniteFuture();

std::string RandomBytes(std::mt19937& random, size_t count) {
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// Opens a store on a medium of its own, each time as after a restart of the server.
using Opener = std::function<std::unique_ptr<Store>()>;

struct Kind {
  std::string name;
  std::function<Opener()> make;
};

std::function<Opener()> OnRocksDb(const std::string& options) {
  return [=]() -> Opener {
    auto backing = std::make_shared<RocksDbBacking>();
    return [=] { return *OpenStore(backing->description() + options); };
  };
}

std::function<Opener()> OnRedis(int primaries) {
  return [=]() -> Opener {
    auto servers = primaries == 1 ? std::make_shared<RedisServers>()
                                  : std::make_shared<RedisServers>(primaries, /*replicas=*/0);
    return [=] { return *OpenStore(servers->address(), "server"); };
  };
}

class ConformanceTest : public ::testing::TestWithParam<Kind> {
 protected:
  ConformanceTest() { Reopen(); }

  void Reopen() {
    store_.reset();
    store_ = open_();
  }
  std::vector<StoredPart> PartsOf(const SequenceIdentity& sequence) {
    absl::StatusOr<StoredSequence> loaded = store_->Load(sequence);
    if (absl::IsNotFound(loaded.status())) return {};
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.ok() ? std::move(loaded->parts) : std::vector<StoredPart>();
  }
  absl::Status Put(const SequenceIdentity& sequence, const StoredPart& part) {
    return PutOne(*store_, sequence, part);
  }

  const Opener open_ = GetParam().make();
  std::unique_ptr<Store> store_;
};

INSTANTIATE_TEST_SUITE_P(Stores, ConformanceTest,
                         ::testing::Values(Kind{"rocksdb", OnRocksDb("")},
                                           Kind{"rocksdb_sync", OnRocksDb("?sync=1")},
                                           Kind{"redis", OnRedis(1)},
                                           Kind{"redis_cluster", OnRedis(3)}),
                         [](const auto& kind) { return kind.param.name; });

TEST_P(ConformanceTest, WhatWasPutIsLoadedBitByBit) {
  std::mt19937 random(1);
  const std::string odd_id("\0\xff sequence\n", 12);
  std::map<std::string, std::vector<StoredPart>> put;
  for (const std::string& id : {std::string("a"), odd_id, std::string(256, 'x')}) {
    std::vector<StoredPart>& parts = put[id];
    parts.push_back(Gap(7, 3));
    for (uint32_t n = 0; n < 200; ++n) {
      const size_t size = n == 150 && id == "a" ? kMaxBlockBytes : 1 + random() % 300;
      parts.push_back(Block(n * 10, 1 + n % 10, RandomBytes(random, size)));
    }
    parts.push_back(Seal(2000, "annotated"));
    // Puts them one by one and many at a time, in any order.
    std::vector<StoredPart> shuffled = parts;
    std::ranges::shuffle(shuffled, random);
    ASSERT_TRUE(Put(Sequence(id), shuffled[0]).ok());
    const absl::Status status = PutParts(*store_, Sequence(id), std::span(shuffled).subspan(1));
    ASSERT_TRUE(status.ok()) << status;
  }
  for (const bool after_restart : {false, true}) {
    if (after_restart) Reopen();
    for (const auto& [id, parts] : put) {
      EXPECT_THAT(PartsOf(Sequence(id)), ElementsAreArray(parts));
      EXPECT_FALSE(store_->Load(Sequence(id))->dropped.has_value());
    }
  }
}

TEST_P(ConformanceTest, SequencesAreTheirOwn) {
  const SequenceIdentity base = Sequence("a");
  std::vector<SequenceIdentity> others(6, base);
  others[0].run_id = "run2";
  others[1].incarnation = 4;
  others[2].id = "b";
  others[3].attempt = 2;
  others[4].id = "";
  others[5] = {"run3", 3, "a", 1};
  ASSERT_TRUE(Put(base, Block(0, 1, "rows")).ok());
  for (const SequenceIdentity& other : others) {
    EXPECT_TRUE(absl::IsNotFound(store_->Load(other).status())) << ToString(other);
  }
}

TEST_P(ConformanceTest, APartPutTwiceIsStoredOnce) {
  const std::vector<StoredPart> parts = {Gap(5, 2), Block(0, 5, "rows"), Seal(7, "a")};
  for (int again = 0; again < 2; ++again) {
    for (const StoredPart& part : parts) ASSERT_TRUE(Put(Sequence("a"), part).ok());
    EXPECT_THAT(PartsOf(Sequence("a")), ElementsAreArray(parts));
  }
}

// A revision that a call was made to before, or of a sequence that was dropped, is another one.
TEST_P(ConformanceTest, AChangeIsMadeToTheRevisionThatItNames) {
  const SequenceIdentity a = Sequence("a");
  const StoredPart first = Block(0, 1, "first"), second = Block(1, 1, "second");
  const auto put = [&](uint64_t revision, const StoredPart& part) {
    return store_->Put(a, {.revision = revision, .added = {&part, 1}, .expires = kNever});
  };
  EXPECT_TRUE(absl::IsAborted(put(1, first).status()));
  EXPECT_TRUE(absl::IsNotFound(store_->Load(a).status()));
  const uint64_t one = *put(0, first);
  for (const uint64_t other : {uint64_t{0}, one + 1}) {
    EXPECT_TRUE(absl::IsAborted(put(other, second).status()));
    EXPECT_THAT(PartsOf(a), ElementsAre(first));
  }
  const uint64_t two = *put(one, second);
  EXPECT_TRUE(absl::IsAborted(put(one, second).status()));
  Reopen();
  EXPECT_THAT(PartsOf(a), ElementsAre(first, second));
  EXPECT_EQ(store_->Load(a)->revision, two);
  const auto drop = [&](uint64_t revision) -> bool {
    const DroppedSequence dropped{.sequence = a, .reason = kReleased, .revision = revision};
    return (*store_->Drop({&dropped, 1}, kNever))[0];
  };
  EXPECT_FALSE(drop(one));
  EXPECT_THAT(PartsOf(a), ElementsAre(first, second));
  EXPECT_TRUE(drop(two));
  for (const uint64_t old : {uint64_t{0}, one, two}) {
    EXPECT_TRUE(absl::IsAborted(put(old, second).status()));
  }
}

TEST_P(ConformanceTest, OfChangesToOneRevisionOneIsMade) {
  constexpr uint32_t kThreads = 4, kTurns = 30;
  const SequenceIdentity a = Sequence("a");
  for (uint32_t turn = 0; turn < kTurns; ++turn) {
    const uint64_t revision = *store_->Revision(a);
    std::atomic<int> made = 0;
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        const StoredPart part = Block(turn * kThreads + i, 1, "row");
        const absl::Status status =
            store_->Put(a, {.revision = revision, .added = {&part, 1}, .expires = kNever}).status();
        EXPECT_TRUE(status.ok() || absl::IsAborted(status)) << status;
        made += status.ok();
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(made, 1);
  }
  EXPECT_EQ(PartsOf(a).size(), kTurns);
}

TEST_P(ConformanceTest, GapsMayOverlapWhatever) {
  ASSERT_TRUE(Put(Sequence("a"), Block(4, 4, "rows")).ok());
  for (const StoredPart& gap : {Gap(2, 5), Gap(2, 9), Gap(2, 5), Gap(0, 3)}) {
    EXPECT_TRUE(Put(Sequence("a"), gap).ok());
  }
  std::vector<bool> covered(12);
  for (const StoredPart& part : PartsOf(Sequence("a"))) {
    if (part.kind != StoredPart::Kind::kGap) continue;
    EXPECT_EQ(part.bytes, "\x08");
    std::fill_n(covered.begin() + part.position, part.count, true);
  }
  EXPECT_THAT(covered,
              ElementsAre(true, true, true, true, true, true, true, true, true, true, true, false));
}

TEST_P(ConformanceTest, GapsKeepTheirReasons) {
  std::vector<StoredPart> gaps;
  for (char reason = 8; reason <= 11; ++reason) {
    gaps.push_back({StoredPart::Kind::kGap, 10u * reason, 3, std::string(1, reason)});
    ASSERT_TRUE(Put(Sequence("a"), gaps.back()).ok());
  }
  Reopen();
  EXPECT_THAT(PartsOf(Sequence("a")), ElementsAreArray(gaps));
}

TEST_P(ConformanceTest, ASealReplacesTheOneBefore) {
  ASSERT_TRUE(Put(Sequence("a"), Seal(7, "first")).ok());
  EXPECT_TRUE(Put(Sequence("a"), Seal(7, "second")).ok());
  EXPECT_THAT(PartsOf(Sequence("a")), ElementsAre(Seal(7, "second")));
}

TEST_P(ConformanceTest, AMergedBlockReplacesOthers) {
  const SequenceIdentity a = Sequence("a");
  std::vector<StoredPart> parts;
  for (uint32_t n = 0; n < 10; ++n) parts.push_back(Block(n * 10, 10, absl::StrCat(n)));
  ASSERT_TRUE(PutParts(*store_, a, parts).ok());
  const std::vector<StoredPart> merged = {Block(10, 20, "12"), Block(50, 60, "5-9 and new")};
  std::vector<StoredPart> removed(parts.begin() + 5, parts.end());
  removed.insert(removed.end(), {parts[1], parts[2]});
  ASSERT_TRUE(store_
                  ->Put(a, {.revision = *store_->Revision(a),
                            .added = merged,
                            .removed = removed,
                            .expires = kNever})
                  .ok());
  Reopen();
  EXPECT_THAT(PartsOf(a), ElementsAre(parts[0], merged[0], parts[3], parts[4], merged[1]));
}

TEST_P(ConformanceTest, ARevisionChangesWithTheSequence) {
  const SequenceIdentity a = Sequence("a");
  EXPECT_EQ(*store_->Revision(a), 0);
  std::set<uint64_t> seen = {0};
  const auto changes = [&] {
    const uint64_t revision = *store_->Revision(a);
    EXPECT_EQ(*store_->Revision(a), revision);
    EXPECT_EQ(store_->Load(a)->revision, revision);
    return seen.insert(revision).second;
  };
  for (const StoredPart& part : {Block(0, 1, "a"), Block(1, 1, "b"), Gap(5, 2), Seal(9, "first")}) {
    ASSERT_TRUE(Put(a, part).ok());
    EXPECT_TRUE(changes());
  }
  ASSERT_TRUE(Put(a, Seal(9, "second")).ok());
  EXPECT_TRUE(changes());
  for (const SequenceIdentity& dropped : {a, Sequence("never there")}) {
    const uint64_t before = *store_->Revision(dropped);
    ASSERT_TRUE(DropOne(*store_, dropped, kReleased).ok());
    EXPECT_NE(*store_->Revision(dropped), before);
  }
}

TEST_P(ConformanceTest, NewsReachEachServerOnce) {
  if (!store_->shared()) GTEST_SKIP();
  const std::unique_ptr<Store> another = open_();
  EXPECT_THAT(*store_->ExchangeNews({}), IsEmpty());
  const std::vector<std::string> first = {"a", std::string("\0\xff\n", 3), ""}, second = {"b"};
  EXPECT_THAT(*store_->ExchangeNews(first), IsEmpty());
  EXPECT_THAT(*another->ExchangeNews(second), ElementsAreArray(first));
  EXPECT_THAT(*another->ExchangeNews({}), IsEmpty());
  EXPECT_THAT(*store_->ExchangeNews({}), ElementsAreArray(second));
}

TEST_P(ConformanceTest, WhatWasDroppedIsGoneButForTheReason) {
  const std::vector<StoredPart> parts = {Gap(5, 2), Block(0, 5, "rows"), Seal(7, "a")};
  ASSERT_TRUE(PutParts(*store_, Sequence("a"), parts).ok());
  EXPECT_EQ(*DropOne(*store_, Sequence("a"), kReleased), true);
  EXPECT_EQ(*DropOne(*store_, Sequence("a"), 4), false);
  EXPECT_EQ(*DropOne(*store_, Sequence("never there"), kReleased), false);
  for (const bool after_restart : {false, true}) {
    if (after_restart) Reopen();
    for (const std::string id : {"a", "never there"}) {
      const auto loaded = store_->Load(Sequence(id));
      ASSERT_TRUE(loaded.ok()) << loaded.status();
      EXPECT_EQ(loaded->dropped, kReleased) << "the first reason";
      EXPECT_THAT(loaded->parts, IsEmpty());
    }
  }
}

TEST_P(ConformanceTest, ManyAreDroppedAtOnce) {
  std::vector<DroppedSequence> dropped;
  for (int i = 0; i < 100; ++i) {
    dropped.push_back(
        {Sequence(absl::StrCat(i)), static_cast<uint8_t>(i % 2 == 0 ? 4 : kReleased)});
    if (i % 3 == 0) {
      ASSERT_TRUE(Put(dropped[i].sequence, Block(0, 1, "rows")).ok());
    }
  }
  const std::vector<bool> had_parts = *store_->Drop(dropped, absl::InfiniteFuture());
  Reopen();
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(store_->Load(dropped[i].sequence)->dropped, dropped[i].reason);
    EXPECT_EQ(had_parts[i], i % 3 == 0);
  }
}

TEST_P(ConformanceTest, ASequenceDroppedDuringAWriteLeavesNothing) {
  constexpr int kSequences = 100;
  const auto name = [](int i) { return Sequence(absl::StrCat(i)); };
  std::thread writer([&] {
    for (int i = 0; i < kSequences; ++i) {
      const StoredPart part = Block(0, 1, "rows");
      store_->Put(name(i), {.added = {&part, 1}, .expires = kNever}).IgnoreError();
    }
  });
  for (int i = 0; i < kSequences; ++i) EXPECT_TRUE(DropOne(*store_, name(i), kReleased).ok());
  writer.join();
  for (int i = 0; i < kSequences; ++i) EXPECT_EQ(store_->Load(name(i))->dropped, kReleased);
}

TEST_P(ConformanceTest, ReadersSeeAllThatWasPutWhileOthersMerge) {
  constexpr uint32_t kBlocks = 150;
  const SequenceIdentity a = Sequence("a");
  std::atomic<uint32_t> put = 0;
  std::thread writer([&] {
    for (uint32_t n = 0; n < kBlocks; ++n) {
      EXPECT_TRUE(Put(a, Block(n, 1, "row")).ok());
      put = n + 1;
      if (n % 10 != 9) continue;
      const StoredPart merged = Block(0, n + 1, std::string(n + 1, 'r'));
      const StoredSequence before = *store_->Load(a);
      EXPECT_TRUE(store_
                      ->Put(a, {.revision = before.revision,
                                .added = {&merged, 1},
                                .removed = before.parts,
                                .expires = kNever})
                      .ok());
    }
  });
  while (put < kBlocks) {
    const uint32_t before = put;
    uint32_t end = 0;
    for (const StoredPart& part : PartsOf(a)) {
      EXPECT_EQ(part.position, end);
      end += part.count;
    }
    EXPECT_GE(end, before);
  }
  writer.join();
}

TEST_P(ConformanceTest, WhatHasExpiredIsNotThere) {
  const absl::Time long_past[] = {absl::Now() - absl::Seconds(10), absl::FromUnixSeconds(-5),
                                  absl::UnixEpoch(), absl::FromUnixSeconds(100),
                                  absl::FromUnixSeconds(30 * 24 * 3600)};
  for (const absl::Time expires : long_past) {
    EXPECT_TRUE(PutOne(*store_, Sequence("a"), Block(0, 1, "rows"), expires).ok());
    EXPECT_TRUE(absl::IsNotFound(store_->Load(Sequence("a")).status())) << expires;
  }
  EXPECT_TRUE(Put(Sequence("a"), Block(0, 2, "rows")).ok()) << "in the place of what expired";
  EXPECT_TRUE(DropOne(*store_, Sequence("a"), kReleased, absl::Now() - absl::Seconds(10)).ok());
  EXPECT_TRUE(absl::IsNotFound(store_->Load(Sequence("a")).status()));
}

// Times may exceed 32 bits of seconds.
TEST_P(ConformanceTest, ExpiryInManyYearsIsSupported) {
  const absl::Time years_ahead[] = {absl::Now() + absl::Hours(100 * 24),
                                    absl::FromUnixSeconds((int64_t{1} << 31) - 1),
                                    absl::FromUnixSeconds(int64_t{1} << 31),
                                    absl::FromUnixSeconds((int64_t{1} << 32) + 5),
                                    absl::Now() + absl::Hours(24 * 365 * 100'000),
                                    absl::FromUnixSeconds(std::numeric_limits<int64_t>::max()),
                                    absl::InfiniteFuture()};
  for (const absl::Time expires : years_ahead) {
    const SequenceIdentity sequence = Sequence(absl::FormatTime(expires, absl::UTCTimeZone()));
    EXPECT_TRUE(PutOne(*store_, sequence, Block(0, 1, "rows"), expires).ok());
    EXPECT_TRUE(store_->Load(sequence).ok()) << expires;
  }
}

TEST_P(ConformanceTest, AllPartsOfASequenceExpireTogether) {
  const std::vector<StoredPart> parts = {Gap(1, 1), Block(0, 1, "old"), Block(2, 1, "new")};
  for (const StoredPart& part : parts) {
    const absl::Duration kept = part == parts[2] ? absl::Hours(1) : absl::Seconds(6);
    ASSERT_TRUE(PutOne(*store_, Sequence("a"), part, absl::Now() + kept).ok());
  }
  absl::SleepFor(absl::Seconds(7));
  EXPECT_THAT(PartsOf(Sequence("a")), ElementsAreArray(parts));
}

TEST_P(ConformanceTest, TheNewestRunRecordStays) {
  EXPECT_TRUE(absl::IsNotFound(store_->GetRun("run").status()));
  const StoredRun first{"run", 1, 5, "config"}, newer{"run", 1, 6, "config"},
      next{"run", 2, 0, "another config"}, other{"run2", 1, 0, std::string("\0\xff", 2)},
      deleted{"run2", 1, 0, ""};
  EXPECT_EQ(*store_->PutRun(first), first);
  EXPECT_EQ(*store_->PutRun(newer), newer);
  EXPECT_EQ(*store_->PutRun(first), newer);
  EXPECT_EQ(*store_->PutRun(next), next);
  EXPECT_EQ(*store_->PutRun(newer), next);
  EXPECT_EQ(*store_->PutRun(other), other);
  Reopen();
  EXPECT_EQ(*store_->GetRun("run"), next);
  EXPECT_EQ(*store_->GetRun("run2"), other);
  EXPECT_EQ(*store_->PutRun(deleted), deleted);
  EXPECT_EQ(*store_->PutRun(other), deleted);
  EXPECT_THAT(store_->ListRuns()->runs, ::testing::UnorderedElementsAre(next, deleted));
}

TEST_P(ConformanceTest, LabelsOfARunAddUp) {
  const std::string odd("\0\t\n=\\x61/\xc3\xa9", 11);
  const StoredRun first{"run", 1, 5, "config", {{4, "a"}, {5, "b"}}},
      older{"run", 1, 3, "config", {{3, "c"}, {4, "x"}}},
      newer{"run", 1, 6, "config", {{5, "b"}, {6, "a"}, {7, odd}}}, next{"run", 2, 0, "config"};
  EXPECT_EQ(*store_->PutRun(first), first);
  StoredRun expected = first;
  expected.labels[3] = "c";
  EXPECT_EQ(*store_->PutRun(older), expected) << "4 has a label";
  expected.policy_version = 6;
  expected.labels[7] = odd;
  EXPECT_EQ(*store_->PutRun(newer), expected) << "'a' names 4";
  EXPECT_EQ(*store_->PutRun(newer), expected);
  Reopen();
  EXPECT_EQ(*store_->GetRun("run"), expected);
  EXPECT_THAT(store_->ListRuns()->runs, ElementsAre(expected));
  EXPECT_EQ(*store_->PutRun(next), next) << "another life has labels of its own";
  EXPECT_EQ(*store_->PutRun(newer), next);
  EXPECT_EQ(*store_->PutRun({"run", 2, 0, ""}), (StoredRun{"run", 2, 0, ""}));
}

TEST_P(ConformanceTest, OfManyWritersOfARunTheNewestWins) {
  VersionLabels labels;
  for (uint64_t version = 0; version < 200; ++version) labels[version] = absl::StrCat(version);
  std::vector<std::thread> writers;
  for (uint64_t w = 0; w < 8; ++w) {
    writers.emplace_back([&, w] {
      for (uint64_t version = w; version < 200; version += 8) {
        const VersionLabels label = {{version, labels[version]}};
        EXPECT_TRUE(store_->PutRun({"run", 1, version, "config", label}).ok());
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(store_->GetRun("run")->policy_version, 199);
  EXPECT_EQ(store_->GetRun("run")->labels, labels);
}

TEST_P(ConformanceTest, IncarnationsAreDroppedWithTheirSteps) {
  for (uint64_t incarnation = 1; incarnation <= 4; ++incarnation) {
    for (const std::string run_id : {"run", "run2"}) {
      const SequenceIdentity sequence{run_id, incarnation, "a", 0};
      ASSERT_TRUE(Put(sequence, Block(0, 1, "rows")).ok());
      ASSERT_TRUE(store_->PutSteps(run_id, incarnation, {{1, "one"}, {9, "nine"}}).ok());
      ASSERT_TRUE(store_->PutSteps(run_id, incarnation, {{9, "NINE"}}).ok());
    }
  }
  ASSERT_TRUE(store_->DropIncarnations("run", 2, 4).ok());
  Reopen();
  const auto is_there = [&](const std::string& run_id, uint64_t incarnation) {
    const auto steps = *store_->GetSteps(run_id, incarnation);
    const bool has_sequence = store_->Load({run_id, incarnation, "a", 0}).ok();
    EXPECT_TRUE(steps.size() == 0 || (*steps[0] == "one" && *steps[1] == "NINE"));
    return std::pair(has_sequence, steps.size());
  };
  for (const uint64_t incarnation : {1, 2, 3, 4}) {
    EXPECT_EQ(is_there("run2", incarnation), std::pair(true, size_t{2}));
    if (incarnation == 1 || incarnation == 4) {
      EXPECT_EQ(is_there("run", incarnation), std::pair(true, size_t{2}));
      continue;
    }
    // The store may remove them in the background.
    const absl::Time end = absl::Now() + absl::Seconds(20);
    while (is_there("run", incarnation) != std::pair(false, size_t{0}) && absl::Now() < end) {
      absl::SleepFor(absl::Milliseconds(20));
    }
    EXPECT_EQ(is_there("run", incarnation), std::pair(false, size_t{0})) << incarnation;
  }
}

}  // namespace
}  // namespace sis
