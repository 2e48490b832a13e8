// The cache in front of a store that fails now and then, over restarts of its server.
#include "server/store/stored_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/block/digest.h"
#include "kernels/block/pack.h"
#include "server/testing/faulty_store.h"
#include "server/testing/record_generator.h"
#include "server/testing/replica.h"
#include "server/testing/store_in_memory.h"

namespace sis {
namespace {

constexpr int kSlots = 2;

// The store's data, which outlives the servers.
struct Disk : StoreMaps {
  std::atomic<int> loads = 0;
  absl::Duration slowness;  // of every load
  std::atomic<Fault> fault = Fault::kNone;
};

class StoreOnDisk final : public StoreInMemory {
 public:
  explicit StoreOnDisk(Disk& disk) : StoreInMemory(disk), disk_(disk) {}
  absl::StatusOr<StoredSequence> Load(const SequenceIdentity& sequence) override {
    absl::SleepFor(disk_.slowness);
    ++disk_.loads;
    return StoreInMemory::Load(sequence);
  }

 private:
  Disk& disk_;
};

// One life of the server.
struct Life : Replica {
  explicit Life(Disk& disk, const v1::RunConfig& config = LosslessConfig(kSlots))
      : Replica(std::make_unique<FaultyStore>(std::make_unique<StoreOnDisk>(disk), disk.fault),
                config) {}
};

v1::AppendEntry SealOf(const std::string& id, uint32_t length) {
  v1::AppendEntry seal;
  seal.mutable_sequence()->set_id(id);
  seal.mutable_seal()->set_length(length);
  return seal;
}

// How many positions each stored block has.
std::vector<uint32_t> StoredBlocks(Disk& disk) {
  WriterLock lock(disk.mutex);
  std::vector<uint32_t> counts;
  for (const auto& [name, sequence] : disk.sequences) {
    for (const auto& [position, block] : sequence.blocks) counts.push_back(block.count);
  }
  return counts;
}

uint64_t DigestOf(const Records& records, uint32_t row, uint32_t position) {
  const std::vector<std::byte> block =
      *PackBlock(records.View(row, 1), {.encoding = BlockEncoding::kFloat32,
                                        .slots = kSlots,
                                        .vocabulary_size = 1000,
                                        .first_position = position});
  return sis::DigestOf(*OpenBlock(block, /*checksums=*/false), 0, 1);
}

uint64_t DigestAt(const Run::Found& found, uint32_t first, uint32_t count) {
  const auto* sequence = std::get_if<std::shared_ptr<Sequence>>(&found);
  return sequence == nullptr ? 0 : Sequence::Reader(**sequence).Digest(first, count);
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
    const int start = disk.loads;
    std::vector<std::thread> readers;
    for (int i = 0; i < threads; ++i) {
      readers.emplace_back([&] { EXPECT_EQ(DigestAt(fresh.Find("a"), 0, 500), digest); });
    }
    for (std::thread& reader : readers) reader.join();
    return disk.loads - start;
  };
  EXPECT_EQ(read_by(1), 1);
  disk.slowness = absl::Milliseconds(5);  // for all to come while the first reads
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
  std::vector<v1::AppendEntry> gaps;
  for (const auto& [first, end, reason] : {std::tuple(1, 14, v1::MISSING_REASON_INVALID_LOG_PROB),
                                           {14, 16, v1::MISSING_REASON_NO_LOG_PROB},
                                           {16, 18, v1::MISSING_REASON_INFINITE_LOG_PROB},
                                           {18, 20, v1::MISSING_REASON_UNKNOWN_VERSION}}) {
    v1::AppendEntry& gap = gaps.emplace_back();
    gap.mutable_sequence()->set_id("a");
    gap.mutable_gap()->set_first_position(first);
    gap.mutable_gap()->set_length(end - first);
    gap.mutable_gap()->set_reason(reason);
  }
  {
    Life writer(disk);
    for (const v1::AppendEntry& gap : gaps) ASSERT_EQ(writer.Append(gap).code(), 0);
    ASSERT_EQ(writer.AppendBlock(records.Block("a", 4, 0, 0, 8)).code(), 0);
    for (const v1::AppendEntry& gap : gaps) ASSERT_EQ(writer.Append(gap).code(), 0) << "again";
  }
  EXPECT_EQ(missing_of(false), expected);
  {
    Life writer(disk);
    ASSERT_EQ(writer.Append(SealOf("a", 20)).code(), 0);
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
  disk.fault = Fault::kDown;
  EXPECT_EQ(life.Find("evicted"), Run::Found(MissingReason::kStoreDown));
  EXPECT_NE(DigestAt(life.Find("in memory"), 0, 10), 0);
  disk.fault = Fault::kNone;
  EXPECT_NE(DigestAt(life.Find("evicted"), 0, 10), 0);
  Life next(disk);
  {
    WriterLock lock(disk.mutex);
    for (auto& [name, sequence] : disk.sequences) sequence.blocks.begin()->second.bytes[100] ^= 1;
  }
  EXPECT_EQ(next.Find("evicted"), Run::Found(MissingReason::kCorrupt));
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

// Two streams that look a sequence up before either has created it.
TEST(StoredCacheTest, ANewSequenceNeverReplacesRecordsThatWereStoredAndEvictedConcurrently) {
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
    ASSERT_TRUE(created->Seal(3).ok());
    parts.unwritten.push_back({.kind = StoredPart::Kind::kSeal, .position = 3});
  }
  EXPECT_TRUE(absl::IsUnavailable(life.stored().Write(life.run(), name, *created)));
  EXPECT_EQ(life.AppendBlock(records.Block("a", 5, 0, 5, 5)).code(), 0);
  uint64_t digest = 0;
  for (uint32_t p = 0; p < 10; ++p) digest += DigestOf(records, p, p);
  EXPECT_EQ(DigestAt(Life(disk).Find("a"), 0, 10), digest);
}

// Two streams that look a sequence up before either has created it, and fit together.
TEST(StoredCacheTest, ANewSequenceHasRecordsThatWereStoredAndEvictedConcurrently) {
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
    ASSERT_TRUE(created->Seal(10).ok());
    parts.unwritten.push_back({.kind = StoredPart::Kind::kSeal, .position = 10});
  }
  EXPECT_TRUE(life.stored().Write(life.run(), name, *created).ok());
  EXPECT_EQ(created->positions(), 5);
  EXPECT_EQ(life.Find("a"), Run::Found(created));
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
    ASSERT_EQ(life.Append(SealOf("a", kLength)).code(), 0);
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

TEST(StoredCacheTest, OnlyTheReasonOfAReleasedSequenceStays) {
  Disk disk;
  const Records records = RecordGenerator(kSlots, 1000, 6).NextRecords(10);
  auto life = std::make_unique<Life>(disk);
  for (int i = 0; i < 20; ++i) {
    const std::string id = absl::StrCat("sequence ", i);
    ASSERT_EQ(life->AppendBlock(records.Block(id)).code(), 0);
    if (i % 2 == 0) {
      ASSERT_EQ(life->Append(SealOf(id, 10)).code(), 0);
    }
    EXPECT_EQ(*life->Release({id}), 1);
  }
  EXPECT_EQ(*life->Release({"never there"}), 0);
  life.reset();
  WriterLock lock(disk.mutex);
  EXPECT_EQ(disk.sequences.size(), 20);
  for (const auto& [name, sequence] : disk.sequences) EXPECT_FALSE(sequence.has_parts());
}

}  // namespace
}  // namespace sis
