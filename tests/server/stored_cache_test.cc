// The cache in front of a store that fails now and then, over restarts of its server.
#include "server/store/stored_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/testing/backing.h"
#include "server/testing/faulty_store.h"
#include "server/testing/record_generator.h"
#include "server/testing/replica.h"

namespace sis {
namespace {

constexpr int kSlots = 2;

// The store, which outlives the servers.
struct Disk {
  RocksDbBacking backing;
  Faults faults;
  std::shared_ptr<Store> store = Open(backing);
};

// One life of the server.
struct Life : Replica {
  explicit Life(Disk& disk, const v1::RunConfig& config = LosslessConfig(kSlots))
      : Replica(std::make_unique<FaultyStore>(disk.store, disk.faults), config) {}
};

// How many positions each stored block of sequence "a" has.
std::vector<uint32_t> StoredBlocks(Disk& disk) {
  const StoredSequence stored = *disk.store->Load({"run", 1, "a", 0});
  std::vector<uint32_t> counts;
  for (const StoredPart& part : stored.parts) {
    if (part.kind == StoredPart::Kind::kBlock) counts.push_back(part.count);
  }
  return counts;
}

uint64_t DigestAt(const Run::Found& found, uint32_t first, uint32_t count) {
  const auto* sequence = std::get_if<std::shared_ptr<Sequence>>(&found);
  if (sequence == nullptr) return 0;
  const Sequence::Reader reader(**sequence);
  return reader.Digest(first, count);
}

absl::StatusCode CodeOf(const v1::Ack& ack) { return static_cast<absl::StatusCode>(ack.code()); }

TEST(StoredCacheTest, ConcurrentReadersLoadAnEvictedSequenceOnce) {
  Disk disk;
  const Records records = RecordGenerator(kSlots, 1000, 1).NextRecords(500);
  uint64_t digest = 0;
  {
    Life writer(disk);
    ASSERT_EQ(writer.AppendBlock(records.Block("a")).code(), 0);
    digest = DigestAt(writer.Find("a"), 0, 500);
  }
  EXPECT_NE(digest, 0);

  const auto read_by = [&](int threads) {
    Life fresh(disk);
    const int start = disk.faults.loads;
    std::vector<std::thread> readers;
    for (int i = 0; i < threads; ++i) {
      readers.emplace_back([&] { EXPECT_EQ(DigestAt(fresh.Find("a"), 0, 500), digest); });
    }
    for (std::thread& reader : readers) reader.join();
    return disk.faults.loads - start;
  };
  EXPECT_EQ(read_by(1), 1);
  disk.faults.slowness = absl::Milliseconds(5);  // for all to come while the first reads
  EXPECT_EQ(read_by(8), 1);
}

TEST(StoredCacheTest, GapsAreStored) {
  Disk disk;
  const Records records = RecordGenerator(kSlots, 1000, 9).NextRecords(8);
  const auto missing_of = [&](bool sealed) {
    Life fresh(disk);
    const Run::Found found = fresh.Find("a");
    const auto& sequence = std::get<std::shared_ptr<Sequence>>(found);
    EXPECT_EQ(sequence->sealed(), sealed);
    EXPECT_EQ(sequence->committed_length(), 20);
    std::vector<std::pair<uint32_t, MissingReason>> missing;
    Sequence::Reader(*sequence).ForEachPiece(0, 21, [&](const Sequence::Reader::Piece& piece) {
      if (piece.block == nullptr) missing.emplace_back(piece.first_position, piece.reason);
    });
    return missing;
  };
  using Ranges = std::vector<std::pair<uint32_t, MissingReason>>;
  const Ranges expected = {
      {0, MissingReason::kNeverArrived},     {1, MissingReason::kInvalidLogProb},
      {12, MissingReason::kInvalidLogProb},  {14, MissingReason::kNoLogProb},
      {16, MissingReason::kInfiniteLogProb}, {18, MissingReason::kUnknownVersion},
      {20, MissingReason::kNeverArrived}};
  const v1::AppendEntry gaps[] = {GapEntry("a", 1, 13),
                                  GapEntry("a", 14, 2, v1::MISSING_REASON_NO_LOG_PROB),
                                  GapEntry("a", 16, 2, v1::MISSING_REASON_INFINITE_LOG_PROB),
                                  GapEntry("a", 18, 2, v1::MISSING_REASON_UNKNOWN_VERSION)};
  {
    Life writer(disk);
    for (const v1::AppendEntry& gap : gaps) ASSERT_EQ(writer.Append(gap).code(), 0);
    ASSERT_EQ(writer.AppendBlock(records.Block("a", 4, 0, 0, 8)).code(), 0);
    for (const v1::AppendEntry& gap : gaps) ASSERT_EQ(writer.Append(gap).code(), 0) << "again";
  }
  EXPECT_EQ(missing_of(false), expected);
  {
    Life writer(disk);
    ASSERT_EQ(writer.Append(SealEntry("a", 20)).code(), 0);
  }
  EXPECT_EQ(missing_of(true), expected);
}

TEST(StoredCacheTest, AStoreThatDoesNotAnswerIsAReason) {
  Disk disk;
  const Records records = RecordGenerator(kSlots, 1000, 3).NextRecords(10);
  Life life(disk);
  for (const std::string id : {"evicted", "in memory"}) {
    ASSERT_EQ(life.AppendBlock(records.Block(id)).code(), 0);
  }
  ASSERT_TRUE(life.run().EvictOldest());
  disk.faults.fault = Fault::kDown;
  EXPECT_EQ(life.Find("evicted"), Run::Found(MissingReason::kStoreDown));
  EXPECT_NE(DigestAt(life.Find("in memory"), 0, 10), 0);
  disk.faults.fault = Fault::kNone;
  EXPECT_NE(DigestAt(life.Find("evicted"), 0, 10), 0);
  const StoredPart part{StoredPart::Kind::kBlock, 0, 1, "rows"};
  const SequenceChange change{.added = {&part, 1}, .expires = absl::InfiniteFuture()};
  ASSERT_TRUE(disk.store->Put({"run", 1, "no block", 0}, change).ok());
  EXPECT_EQ(life.Find("no block"), Run::Found(MissingReason::kCorrupt));
}

TEST(StoredCacheTest, AckedEntriesStayWithConcurrentWriters) {
  constexpr uint32_t kWriters = 4, kBlocks = 40, kSequences = 3;
  Disk disk;
  const Records records = RecordGenerator(kSlots, 1000, 5).NextRecords(kWriters * kBlocks);
  {
    Life life(disk);
    std::vector<std::thread> writers;
    for (uint32_t w = 0; w < kWriters; ++w) {
      writers.emplace_back([&, w] {
        for (uint32_t n = 0; n < kBlocks; ++n) {
          const uint32_t position = n * kWriters + w;
          for (uint32_t s = 0; s < kSequences; ++s) {
            const RecordedBlock block = records.Block(absl::StrCat(s), position, 0, position, 1);
            absl::StatusCode code = CodeOf(life.AppendBlock(block));
            // Another writer has created, stored and lost it from memory meanwhile.
            while (code == absl::StatusCode::kUnavailable) code = CodeOf(life.AppendBlock(block));
            EXPECT_EQ(code, absl::StatusCode::kOk);
          }
          life.run().EvictOldest();
          life.Find("0");
        }
      });
    }
    for (std::thread& writer : writers) writer.join();
  }
  Life reader(disk);
  for (uint32_t s = 0; s < kSequences; ++s) {
    const Run::Found found = reader.Find(absl::StrCat(s));
    for (uint32_t p = 0; p < kWriters * kBlocks; ++p) {
      ASSERT_EQ(DigestAt(found, p, 1), DigestOf(records, p, p)) << "position " << p;
    }
  }
}

// Two streams that look a sequence up before either has created it. They may fit together.
TEST(StoredCacheTest, ANewSequenceNeverReplacesRecordsThatWereStoredAndEvictedConcurrently) {
  for (const uint32_t sealed_at : {3, 10}) {
    Disk disk;
    const Records records = RecordGenerator(kSlots, 1000, 8).NextRecords(10);
    Life life(disk);
    ASSERT_EQ(life.AppendBlock(records.Block("a", 0, 0, 0, 5)).code(), 0);
    ASSERT_TRUE(life.run().EvictOldest());
    const SequenceName name{"a", 0};
    const std::shared_ptr<Sequence> created = *life.run().FindOrCreate(name);
    {
      SequenceParts& parts = PartsOf(*created);
      WriterLock order(parts.order);
      ASSERT_TRUE(created->Seal(sealed_at).ok());
      parts.unwritten.push_back({.kind = StoredPart::Kind::kSeal, .position = sealed_at});
    }
    const absl::Status written = life.stored().Write(life.run(), name, *created);
    if (sealed_at == 10) {
      EXPECT_TRUE(written.ok()) << written;
      EXPECT_EQ(created->positions(), 5);
      EXPECT_EQ(life.Find("a"), Run::Found(created));
    } else {
      EXPECT_TRUE(absl::IsUnavailable(written)) << written;
    }
    EXPECT_EQ(life.AppendBlock(records.Block("a", 5, 0, 5, 5)).code(), 0);
    uint64_t digest = 0;
    for (uint32_t p = 0; p < 10; ++p) digest += DigestOf(records, p, p);
    EXPECT_EQ(DigestAt(Life(disk).Find("a"), 0, 10), digest);
  }
}

// A sequence that is streamed token by token is stored in few blocks, also before its seal.
TEST(StoredCacheTest, SmallBlocksAreMergedWhereTheyAreStored) {
  constexpr uint32_t kLength = 1000;
  Disk disk;
  const Records records = RecordGenerator(kSlots, 1000, 7).NextRecords(kLength);
  uint64_t digest = 0;
  {
    Life life(disk);
    for (uint32_t p = 0; p < kLength; ++p) {
      ASSERT_EQ(life.AppendBlock(records.Block("a", p, 0, p, 1)).code(), 0);
      ASSERT_LE(StoredBlocks(disk).size(), p / Sequence::kSmallPositions + 256);
    }
    digest = DigestAt(life.Find("a"), 0, kLength);
    ASSERT_EQ(life.Append(SealEntry("a", kLength)).code(), 0);
  }
  const std::vector<uint32_t> counts = StoredBlocks(disk);
  EXPECT_THAT(counts, testing::Each(testing::Ge(Sequence::kSmallPositions)));
  EXPECT_EQ(DigestAt(Life(disk).Find("a"), 0, kLength), digest);
}

TEST(StoredCacheTest, OnlyNewRangesOfABlockAreStored) {
  Disk disk;
  const Records records = RecordGenerator(kSlots, 1000, 4).NextRecords(600);
  Life life(disk);
  ASSERT_EQ(life.AppendBlock(records.Block("a", 200, 0, 200, 50)).code(), 0);
  ASSERT_EQ(life.AppendBlock(records.Block("a", 0, 0, 0, 600)).code(), 0);
  EXPECT_THAT(StoredBlocks(disk), testing::ElementsAre(200, 50, 350));
  const uint64_t digest = DigestAt(life.Find("a"), 0, 600);
  EXPECT_EQ(DigestAt(Life(disk).Find("a"), 0, 600), digest);
}

// The store's own clock may not know it yet.
TEST(StoredCacheTest, ASequenceThatExpiresInMemoryIsDroppedFromTheStore) {
  Disk disk;
  v1::RunConfig config = LosslessConfig(kSlots);
  config.set_time_to_live_seconds(60);
  {
    Life life(disk, config);
    ASSERT_EQ(life.AppendBlock(RecordGenerator(kSlots, 1000, 6).NextRecords(10).Block("a")).code(),
              0);
    life.clock().Advance(absl::Minutes(2));
    life.registry().DropExpired();
  }
  EXPECT_EQ(Life(disk, config).Find("a"), Run::Found(MissingReason::kExpired));
}

}  // namespace
}  // namespace sis
