// The cache in front of a store that fails now and then, alone and beside another replica.
#include "server/store/stored_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/decide/scalar_backend.h"
#include "server/testing/evaluate_at_once.h"
#include "server/testing/record_generator.h"
#include "tests/server/store_fleet.h"

namespace sis {
namespace {

TEST(StoredCacheTest, WhatWasEvictedIsReadOnceWhoeverAsks) {
  Fleet fleet;
  const Records records = RecordGenerator(kSlots, 1000, 1).NextRecords(500);
  uint64_t digest = 0;
  {
    FleetReplica writer(fleet);  // seals behind, until it goes
    ASSERT_EQ(writer.AppendBlock(records.Block("a")).code(), 0);
    digest = DigestAt(writer.stored().Find(writer.run(), {"a", 0}, 0, 500, {}), 0, 500);
    v1::AppendEntry seal;
    seal.mutable_seal()->mutable_sequence()->set_id("a");
    seal.mutable_seal()->set_length(500);
    ASSERT_EQ(writer.Append(seal).code(), 0);
  }
  EXPECT_NE(digest, 0);

  const auto gets = [&] {
    WriterLock lock(fleet.mutex);
    return fleet.gets;
  };
  const auto read_by = [&](int threads) {
    FleetReplica fresh(fleet);
    const int64_t start = gets();
    std::vector<std::thread> readers;
    for (int i = 0; i < threads; ++i) {
      readers.emplace_back([&] {
        EXPECT_EQ(DigestAt(fresh.stored().Find(fresh.run(), {"a", 0}, 0, 500, {}), 0, 500), digest);
      });
    }
    for (std::thread& reader : readers) reader.join();
    return gets() - start;
  };
  const int64_t once = read_by(1);
  fleet.slowness = absl::Milliseconds(5);  // for all to come while the first reads
  EXPECT_EQ(read_by(8), once);
}

int64_t BytesIn(Fleet& fleet) {
  WriterLock lock(fleet.mutex);
  int64_t bytes = 0;
  for (const auto& [key, value] : fleet.items) bytes += static_cast<int64_t>(value.size());
  return bytes;
}

// What a worker takes back and sends again, for ever.
TEST(StoredCacheTest, ALogIsNotLongerForWhatWasTruncated) {
  constexpr uint32_t kLength = 2000, kKept = 500;
  constexpr int kTimes = 1000;
  constexpr int64_t kMostBytes = int64_t{8} << 20;
  const Records records = RecordGenerator(kSlots, 1000, 7).NextRecords(kLength);
  for (const bool shared : {false, true}) {
    SCOPED_TRACE(shared);
    Fleet fleet;
    fleet.shared = shared;
    const auto digest_at = [&](FleetReplica& replica) {
      return DigestAt(replica.stored().Find(replica.run(), {"a", 0}, 0, 0, {}), 0, kLength);
    };
    uint64_t digest = 0;
    int64_t most = 0, sent = 0;
    {
      FleetReplica replica(fleet);
      std::optional<FleetReplica> other;
      if (shared) other.emplace(fleet);
      v1::AppendEntry truncate;
      truncate.mutable_truncate()->mutable_sequence()->set_id("a");
      for (int time = 0; time < kTimes; ++time) {
        truncate.mutable_truncate()->set_length(time % 2 == 0 ? 0 : kKept);
        ASSERT_EQ(CodeOf(replica.Append(truncate)), absl::StatusCode::kOk);
        const v1::Block block = records.Block("a");
        ASSERT_EQ(CodeOf(replica.AppendBlock(block)), absl::StatusCode::kOk);
        sent += static_cast<int64_t>(block.ByteSizeLong());
        most = std::max(most, BytesIn(fleet));
        if (time % 100 != 0) continue;
        digest = digest_at(replica);
        if (shared) {
          EXPECT_EQ(digest_at(*other), digest);
        }
      }
    }
    EXPECT_GT(sent, 5 * kMostBytes);
    EXPECT_LE(most, kMostBytes);
    FleetReplica reader(fleet);
    EXPECT_EQ(digest_at(reader), digest);
    EXPECT_NE(digest, 0);
  }
}

TEST(StoredCacheTest, WhatCanNotBeStoredIsNotAckedUntilItCan) {
  Fleet fleet;
  FleetReplica replica(fleet), other(fleet);
  const Records records = RecordGenerator(kSlots, 1000, 2).NextRecords(10);
  for (const Fault fault : {Fault::kDown, Fault::kAnswersLost}) {
    const std::string id = absl::StrCat("sequence ", static_cast<int>(fault));
    ASSERT_EQ(replica.AppendBlock(records.Block(id, 0, 0, 0, 5)).code(), 0);
    fleet.fault = fault;
    for (int again = 0; again < 2; ++again) {
      const v1::Ack refused = replica.AppendBlock(records.Block(id, 5, 0, 5, 5));
      EXPECT_EQ(CodeOf(refused), absl::StatusCode::kUnavailable);
      EXPECT_GT(refused.retry_seconds(), 0);
    }
    fleet.fault = Fault::kNone;
    EXPECT_EQ(replica.AppendBlock(records.Block(id, 5, 0, 5, 5)).code(), 0);
    uint64_t digest = 0;
    for (uint32_t p = 0; p < 10; ++p) digest += DigestOf(records, p, p);
    EXPECT_EQ(DigestAt(other.stored().Find(other.run(), {id, 0}, 0, 10, {}), 0, 10), digest);
  }
}

TEST(StoredCacheTest, AStoreThatDoesNotAnswerIsAReason) {
  Fleet fleet;
  FleetReplica replica(fleet), other(fleet), third(fleet);
  const Records records = RecordGenerator(kSlots, 1000, 3).NextRecords(10);
  ASSERT_EQ(replica.AppendBlock(records.Block("a")).code(), 0);
  fleet.fault = Fault::kDown;
  EXPECT_EQ(other.stored().Find(other.run(), {"a", 0}, 0, 10, {}),
            Run::Found(MissingReason::kStoreDown));
  EXPECT_NE(DigestAt(replica.stored().Find(replica.run(), {"a", 0}, 0, 10, {}), 0, 10), 0);
  fleet.fault = Fault::kNone;
  EXPECT_NE(DigestAt(other.stored().Find(other.run(), {"a", 0}, 0, 10, {}), 0, 10), 0);
  {
    WriterLock lock(fleet.mutex);
    for (auto& [key, value] : fleet.items) value[value.size() / 2] ^= 1;
  }
  EXPECT_EQ(third.stored().Find(third.run(), {"a", 0}, 0, 10, {}),
            Run::Found(MissingReason::kCorrupt));
}

TEST(StoredCacheTest, WhatWasAckedIsThereWhoeverWritesAtTheSameTime) {
  constexpr uint32_t kWriters = 4, kBlocks = 40, kSequences = 3;
  Fleet fleet;
  const Records records = RecordGenerator(kSlots, 1000, 5).NextRecords(kWriters * kBlocks);
  {
    FleetReplica replicas[] = {FleetReplica(fleet), FleetReplica(fleet)};
    std::vector<std::thread> writers;
    for (uint32_t w = 0; w < kWriters; ++w) {
      writers.emplace_back([&, w] {
        FleetReplica& replica = replicas[w % 2];
        for (uint32_t n = 0; n < kBlocks; ++n) {
          const uint32_t position = n * kWriters + w;
          for (uint32_t s = 0; s < kSequences; ++s) {
            const v1::Block block = records.Block(absl::StrCat(s), position, 0, position, 1);
            EXPECT_EQ(CodeOf(replica.AppendBlock(block)), absl::StatusCode::kOk);
          }
          replica.run().EvictOldest();
          replica.stored().Find(replica.run(), {"0", 0}, 0, position, {});
        }
      });
    }
    for (std::thread& writer : writers) writer.join();
  }
  FleetReplica reader(fleet);
  for (uint32_t s = 0; s < kSequences; ++s) {
    const Run::Found found = reader.stored().Find(reader.run(), {absl::StrCat(s), 0}, 0, 0, {});
    for (uint32_t p = 0; p < kWriters * kBlocks; ++p) {
      ASSERT_EQ(DigestAt(found, p, 1), DigestOf(records, p, p)) << "position " << p;
    }
  }
}

class ReleaseTest : public ::testing::TestWithParam<bool> {
 protected:
  ReleaseTest() { fleet_.shared = GetParam(); }

  std::unique_ptr<FleetReplica> Start() { return std::make_unique<FleetReplica>(fleet_); }

  std::unique_ptr<FleetReplica> KillAndStart(std::unique_ptr<FleetReplica> replica) {
    fleet_.fault = Fault::kDown;  // what it still does has no effect
    replica.reset();
    fleet_.fault = Fault::kNone;
    return Start();
  }

  const Records records_ = RecordGenerator(kSlots, 1000, 6).NextRecords(10);
  Fleet fleet_;
};
INSTANTIATE_TEST_SUITE_P(Stores, ReleaseTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "shared" : "own"; });

TEST_P(ReleaseTest, AnAnswerMeansStored) {
  auto replica = Start();
  std::vector<std::string> ids;
  for (int i = 0; i < 200; ++i) ids.push_back(absl::StrCat("sequence ", i));
  for (const std::string& id : ids) ASSERT_EQ(replica->AppendBlock(records_.Block(id)).code(), 0);
  for (int i = 0; i < 100; ++i) replica->run().EvictOldest();
  EXPECT_EQ(replica->Release(ids)->sequences, 200);
  replica = KillAndStart(std::move(replica));
  for (const std::string& id : ids) EXPECT_EQ(replica->Find(id), kGone) << id;
}

TEST_P(ReleaseTest, WhatCanNotBeStoredIsAnErrorUntilItCan) {
  for (const auto& [fault, code] :
       {std::pair(Fault::kDown, absl::StatusCode::kUnavailable),
        std::pair(Fault::kFull, absl::StatusCode::kResourceExhausted)}) {
    auto replica = Start();
    const std::string in_memory = absl::StrCat("in memory ", static_cast<int>(fault));
    const std::string evicted = absl::StrCat("evicted ", static_cast<int>(fault));
    ASSERT_EQ(replica->AppendBlock(records_.Block(evicted)).code(), 0);
    ASSERT_TRUE(replica->run().EvictOldest());
    ASSERT_EQ(replica->AppendBlock(records_.Block(in_memory)).code(), 0);
    fleet_.fault = fault;
    for (int again = 0; again < 2; ++again) {
      EXPECT_EQ(replica->Release({in_memory}).status().code(), code);
      EXPECT_EQ(replica->Release({evicted}).status().code(), code);
    }
    fleet_.fault = Fault::kNone;
    EXPECT_TRUE(replica->Release({in_memory, evicted}).ok());
    replica = KillAndStart(std::move(replica));
    EXPECT_EQ(replica->Find(in_memory), kGone);
    EXPECT_EQ(replica->Find(evicted), kGone);
  }
}

TEST_P(ReleaseTest, WhatMemoryHasReleasedIsTriedAgain) {
  auto replica = Start();
  for (const std::string id : {"a", "b"}) {
    ASSERT_EQ(replica->AppendBlock(records_.Block(id)).code(), 0);
  }
  fleet_.fault = Fault::kFull;
  EXPECT_FALSE(replica->Release({"a"}).ok());
  fleet_.fault = Fault::kNone;
  replica->stored().RetryDropsBehind();
  {
    auto other = Start();
    while (other->Find("a") != kGone) other = Start();
  }
  // Nobody asks again before the end.
  fleet_.fault = Fault::kFull;
  EXPECT_FALSE(replica->Release({"b"}).ok());
  fleet_.fault = Fault::kNone;
  replica = Start();
  EXPECT_EQ(replica->Find("b"), kGone);
}

TEST_P(ReleaseTest, WhatIsLeasedGoesWithTheServer) {
  auto replica = Start();
  for (const bool killed : {false, true}) {
    const std::string name = killed ? "killed" : "ended";
    ASSERT_EQ(replica->AppendBlock(records_.Block(name)).code(), 0);
    replica->Lease(name, absl::Hours(1));
    EXPECT_EQ(replica->Release({name})->sequences, 1);
    EXPECT_NE(DigestAt(replica->Find(name), 0, 10), 0) << "leased";
    EXPECT_EQ(replica->Release({name})->sequences, 0);
    if (killed) {
      replica = KillAndStart(std::move(replica));
    } else {
      replica.reset();
      replica = Start();
    }
    // What others may be reading stays for them until the lease ends.
    const bool gone = !killed || !fleet_.shared;
    EXPECT_EQ(replica->Find(name) == kGone, gone);
  }
}

TEST_P(ReleaseTest, NothingButTheReasonStays) {
  auto replica = Start();
  for (int i = 0; i < 20; ++i) {
    const std::string id = absl::StrCat("sequence ", i);
    ASSERT_EQ(replica->AppendBlock(records_.Block(id)).code(), 0);
    if (i % 2 == 0) {
      v1::AppendEntry seal;
      seal.mutable_seal()->mutable_sequence()->set_id(id);
      seal.mutable_seal()->set_length(10);
      ASSERT_EQ(replica->Append(seal).code(), 0);
    }
    EXPECT_EQ(replica->Release({id})->sequences, 1);
  }
  replica.reset();
  WriterLock lock(fleet_.mutex);
  // The run, a reason each, and where others write too a witness each.
  EXPECT_EQ(fleet_.items.size(), fleet_.shared ? 41 : 21);
}

TEST_P(ReleaseTest, AVersionIsStoredOrNothingChanges) {
  auto replica = Start();
  ASSERT_TRUE(replica->AdvanceVersion(3).ok());
  for (const auto& [fault, code] :
       {std::pair(Fault::kDown, absl::StatusCode::kUnavailable),
        std::pair(Fault::kFull, absl::StatusCode::kResourceExhausted)}) {
    fleet_.fault = fault;
    EXPECT_EQ(replica->AdvanceVersion(4).status().code(), code);
    EXPECT_EQ(replica->run().policy_version(), 3);
    EXPECT_TRUE(absl::IsFailedPrecondition(replica->AdvanceVersion(2).status()));
    EXPECT_TRUE(replica->AdvanceVersion(3).ok()) << "stored before";
  }
  fleet_.fault = Fault::kNone;
  EXPECT_TRUE(replica->AdvanceVersion(4).ok());
  replica = KillAndStart(std::move(replica));
  EXPECT_EQ(replica->run().policy_version(), 4);
}

// What a server knows of it is stale, and another has added newer positions meanwhile.
TEST(StoredCacheTest, WhatIsStaleHereButNotElsewhereIsKept) {
  Fleet fleet;
  v1::RunConfig config = LosslessConfig(kSlots);
  config.set_max_staleness(1);
  const Records records = RecordGenerator(kSlots, 1000, 8).NextRecords(10);
  uint64_t digest = 0;
  for (uint32_t p = 0; p < 10; ++p) digest += DigestOf(records, p, p);
  FleetReplica newer(fleet, config);
  {
    FleetReplica older(fleet, config);
    for (const std::string id : {"continued", "not continued"}) {
      ASSERT_EQ(older.AppendBlock(records.Block(id, 0, 0, 0, 5)).code(), 0);
    }
    ASSERT_EQ(newer.AppendBlock(records.Block("continued", 5, 3, 5, 5)).code(), 0);
    EXPECT_EQ(*older.AdvanceVersion(3), 2);
    EXPECT_EQ(DigestAt(older.Find("continued"), 0, 10), digest);
  }
  FleetReplica fresh(fleet, config);
  for (FleetReplica* replica : {&newer, &fresh}) {
    EXPECT_EQ(DigestAt(replica->Find("continued"), 0, 10), digest);
    EXPECT_EQ(replica->Find("not continued"), Run::Found(MissingReason::kStale));
    EXPECT_EQ(CodeOf(replica->AppendBlock(records.Block("not continued", 0, 0, 0, 5))),
              absl::StatusCode::kFailedPrecondition);
  }
  EXPECT_EQ(newer.AppendBlock(records.Block("continued", 0, 0, 0, 5)).code(), 0) << "again";
}

// A version reaches one server, and the others within a second. What was stale where it was fetched
// has no values, so a server that is behind takes it for stale too; decided there, it is counted
// like that.
TEST(StoredCacheTest, WhatWasStaleWhereItWasFetchedIsMissingWhereItIsNotYet) {
  Fleet fleet;
  v1::RunConfig config = LosslessConfig(kSlots);
  config.set_max_staleness(1);
  FleetReplica ahead(fleet, config);
  FleetReplica behind(fleet, config);
  RecordGenerator generator(kSlots, 1000, 1);
  const Records records = generator.NextRecords(100);
  ASSERT_EQ(ahead.AppendBlock(records.Block("a", 0, 1, 0, 70)).code(), 0);
  ASSERT_EQ(ahead.AppendBlock(records.Block("a", 70, 2, 70, 30)).code(), 0);
  ASSERT_TRUE(ahead.AdvanceVersion(3).ok());
  ASSERT_EQ(behind.run().policy_version(), 0);

  v1::EvaluateRequest request;
  request.set_draw(1);
  *request.mutable_gathered() = generator.NextCurrent(records).Gathered(0, 100);
  std::string& log_probs = *request.mutable_gathered()->mutable_log_probs();
  std::fill_n(log_probs.begin(), 70 * kSlots * sizeof(float), '\xff');
  v1::Slice& slice = *request.add_slices();
  slice.mutable_sequence()->set_id("a");
  slice.set_length(100);
  const uint64_t oldest_fresh = ahead.run().oldest_fresh_version();
  const uint64_t fetched = Sequence::Reader(*std::get<std::shared_ptr<Sequence>>(ahead.Find("a")))
                               .Digest(0, 100, oldest_fresh);
  const auto evaluate = [&](uint64_t digest) {
    slice.set_record_digest(digest);
    return EvaluateAtOnce(behind.run(), ScalarBackend(), request);
  };
  const absl::StatusOr<v1::EvaluateResponse> response = evaluate(fetched);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->totals().missing(), 70);
  ASSERT_EQ(response->missing_size(), 1);
  EXPECT_EQ(response->missing(0).reason(), v1::STALE);
  EXPECT_EQ(behind.run().steps().Find(1)->evaluated.sums.missing, 70);
  EXPECT_TRUE(absl::IsFailedPrecondition(evaluate(fetched + 1).status()));
}

// Two servers whose clients find the next one with each call.
class OneNameTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const std::string id : {"a", "b"}) {
      ASSERT_EQ(here_.AppendBlock(records_.Block(id)).code(), 0);
      ASSERT_NE(DigestAt(there_.Find(id), 0, 10), 0);
    }
  }
  static constexpr size_t kAsked = 1024;
  // A lease of the other server.
  uint64_t LeaseThere(const std::string& id) { return there_.Lease(id, absl::Hours(1)); }
  RunDescription There() {
    there_.stored().FollowReleases(there_.run(), kAsked);
    return there_.run().Describe();
  }

  const Records records_ = RecordGenerator(kSlots, 1000, 8).NextRecords(10);
  Fleet fleet_;
  FleetReplica here_{fleet_}, there_{fleet_};
};

TEST_F(OneNameTest, WhatOneHasReleasedTheOthersForget) {
  EXPECT_EQ(here_.Release({"a", "b"}, {LeaseThere("a"), LeaseThere("b")})->sequences, 2);
  const RunDescription run = There();
  EXPECT_EQ(run.leases, 0);
  // What a lease held is asked about when it is its turn.
  EXPECT_EQ(There().bytes, 0);
  EXPECT_EQ(there_.Find("a"), kGone);
}

TEST_F(OneNameTest, ALeaseEndsWhereverItIsReleased) {
  const uint64_t lease = LeaseThere("a");
  EXPECT_EQ(here_.Release({}, {lease})->leases, 0) << "it is not of this server";
  EXPECT_EQ(There().leases, 0);
  EXPECT_TRUE(absl::IsFailedPrecondition(there_.run().RenewLease(lease)));
  EXPECT_EQ(There().sequences, 2) << "nobody has released these";
}

TEST_F(OneNameTest, ALeaseKeepsWhatAnotherServerReleasesUntilItEnds) {
  LeaseThere("a");
  EXPECT_EQ(here_.Release({"a", "b"})->sequences, 2);
  EXPECT_EQ(There().sequences, 1);
  there_.clock().Advance(absl::Hours(2));
  there_.registry().DropExpired();
  EXPECT_EQ(There().sequences, 0);
}

TEST_F(OneNameTest, WhatIsReleasedUnderTwoLeasesGoesWhenBothHaveEndedElsewhere) {
  const uint64_t first = LeaseThere("a"), second = LeaseThere("a");
  EXPECT_EQ(there_.Release({"a"})->sequences, 1);
  EXPECT_EQ(here_.Release({}, {first, second})->leases, 0);
  EXPECT_EQ(There().leases, 0);
  EXPECT_EQ(there_.Find("a"), kGone);
  FleetReplica third(fleet_);
  while (third.Find("a") != kGone) absl::SleepFor(absl::Milliseconds(1));
}

TEST_F(OneNameTest, WhatTheStoreDoesNotTellIsAskedAgain) {
  const uint64_t lease = LeaseThere("a");
  fleet_.fault = Fault::kDown;
  EXPECT_TRUE(absl::IsUnavailable(here_.Release({}, {lease}).status()));
  fleet_.fault = Fault::kNone;
  EXPECT_EQ(There().leases, 1);
  EXPECT_EQ(here_.Release({"a", "b"}, {lease})->sequences, 2);
  fleet_.fault = Fault::kDown;
  EXPECT_EQ(There().leases, 1);
  fleet_.fault = Fault::kNone;
  There();
  EXPECT_EQ(There().bytes, 0);
}

// Every sequence has its turn, however many there are.
TEST_F(OneNameTest, ManyAreForgottenInTurns) {
  std::vector<std::string> ids;
  for (int i = 0; i < 3000; ++i) ids.push_back(absl::StrCat("sequence ", i));
  for (const std::string& id : ids) {
    ASSERT_EQ(here_.AppendBlock(records_.Block(id)).code(), 0);
    ASSERT_NE(DigestAt(there_.Find(id), 0, 10), 0);
  }
  const std::vector<std::string> released(ids.begin() + 500, ids.end());
  EXPECT_EQ(here_.Release(released)->sequences, 2500);
  for (int turn = 0; turn < 3; ++turn) There();
  EXPECT_EQ(There().sequences, 502);
}

TEST(StoredCacheTest, WhatOneServerHasNotUsedForLongIsStillThere) {
  Fleet fleet;
  v1::RunConfig config = LosslessConfig(kSlots);
  config.set_time_to_live_seconds(10);
  Replica here(StoreOf(fleet), config), there(StoreOf(fleet), config);
  const Records records = RecordGenerator(kSlots, 1000, 9).NextRecords(10);
  ASSERT_EQ(here.AppendBlock(records.Block("a")).code(), 0);
  const uint64_t digest = DigestAt(there.Find("a"), 0, 10);
  there.clock().Advance(absl::Seconds(11));
  there.registry().DropExpired();
  EXPECT_EQ(there.run().sequences(), 0);
  EXPECT_NE(digest, 0);
  EXPECT_EQ(DigestAt(there.Find("a"), 0, 10), digest);
}

v1::AppendEntry SealEntry(const std::string& id, uint32_t length) {
  v1::AppendEntry entry;
  entry.mutable_seal()->mutable_sequence()->set_id(id);
  entry.mutable_seal()->set_length(length);
  return entry;
}

TEST(StoredCacheTest, WhatIsSaidOfASealedSequenceLaterIsReadBesideItsWholeForm) {
  Fleet fleet;
  const Records records = RecordGenerator(kSlots, 1000, 10).NextRecords(10);
  v1::AppendEntry seal = SealEntry("a", 10);
  {
    FleetReplica writer(fleet);  // writes the whole form behind, until it goes
    ASSERT_EQ(writer.AppendBlock(records.Block("a")).code(), 0);
    seal.mutable_seal()->mutable_annotation()->set_prompt("2 + 2 =");
    ASSERT_EQ(writer.Append(seal).code(), 0);
  }
  {
    FleetReplica judge(fleet);
    seal.mutable_seal()->mutable_annotation()->clear_prompt();
    seal.mutable_seal()->mutable_annotation()->set_reward(1);
    ASSERT_EQ(judge.Append(seal).code(), 0);
  }
  FleetReplica reader(fleet);
  const Run::Found found = reader.Find("a");
  EXPECT_NE(DigestAt(found, 0, 10), 0);
  v1::Annotation annotation;
  ASSERT_TRUE(annotation.ParseFromString(std::get<0>(found)->annotation()));
  EXPECT_EQ(annotation.prompt(), "2 + 2 =");
  EXPECT_EQ(annotation.reward(), 1);
}

// From the log, and from the whole form.
TEST(StoredCacheTest, ValuesThatFillSeveralEntriesAreReadBack) {
  constexpr int kWideSlots = 4;
  constexpr uint32_t kLength = 100;
  constexpr size_t kWidth = 16384;
  static_assert(kLength * kWidth > 3 * kMaxRowBytes);
  v1::RunConfig config = LosslessConfig(kWideSlots);
  v1::Column& column = *config.add_columns();
  column.set_name("teacher");
  column.set_bytes(kWidth / kWideSlots);
  column.set_per_slot(true);
  RecordGenerator random(kWideSlots, 1000, 11);
  v1::Block block = random.NextRecords(kLength).Block("a");
  std::string& values = *block.add_columns();
  for (size_t i = 0; i < kLength * kWidth; ++i) values += static_cast<char>(random.Uniform(0, 255));

  Fleet fleet;
  const auto expect_there = [&](FleetReplica& replica) {
    const Run::Found found = replica.Find("a");
    ASSERT_TRUE(std::holds_alternative<std::shared_ptr<Sequence>>(found));
    std::string read(values.size(), '\0');
    std::vector<uint8_t> present(kLength);
    Sequence::Reader(*std::get<0>(found))
        .ReadColumn(0, 0, std::as_writable_bytes(std::span(read)), present);
    EXPECT_EQ(present, std::vector<uint8_t>(kLength, 1));
    EXPECT_TRUE(read == values);
  };
  {
    FleetReplica writer(fleet, config);
    ASSERT_EQ(writer.AppendBlock(block).code(), 0);
    FleetReplica reader(fleet, config);
    expect_there(reader);
    EXPECT_TRUE(writer.run().EvictOldest());
    expect_there(writer);
    ASSERT_EQ(writer.Append(SealEntry("a", kLength)).code(), 0);
  }
  FleetReplica reader(fleet, config);
  expect_there(reader);
}

}  // namespace
}  // namespace sis
