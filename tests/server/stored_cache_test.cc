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
#include "server/testing/faulty_items.h"
#include "server/testing/items_in_memory.h"
#include "server/testing/record_generator.h"
#include "server/testing/replica.h"

namespace sis {
namespace {

constexpr int kSlots = 2;

// What outlives the servers.
struct Disk : ItemMap {
  int64_t gets ABSL_GUARDED_BY(mutex) = 0;
  absl::Duration slowness;  // of every get
  std::atomic<Fault> fault = Fault::kNone;
};

class ItemsOnDisk final : public ItemsInMemory {
 public:
  explicit ItemsOnDisk(Disk& disk) : ItemsInMemory(disk), disk_(disk) {}
  std::vector<absl::StatusOr<std::string>> Get(std::span<const std::string> keys) override {
    absl::SleepFor(disk_.slowness);
    {
      WriterLock lock(disk_.mutex);
      disk_.gets += static_cast<int64_t>(keys.size());
    }
    return ItemsInMemory::Get(keys);
  }

 private:
  Disk& disk_;
};

// One life of the server.
struct Life : Replica {
  explicit Life(Disk& disk, const v1::RunConfig& config = LosslessConfig(kSlots))
      : Replica(std::make_unique<SequenceStore>(
                    std::make_unique<FaultyItems>(std::make_unique<ItemsOnDisk>(disk), disk.fault)),
                config) {}
};

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

TEST(StoredCacheTest, WhatWasEvictedIsReadOnceWhoeverAsks) {
  Disk disk;
  const Records records = RecordGenerator(kSlots, 1000, 1).NextRecords(500);
  uint64_t digest = 0;
  {
    Life writer(disk);  // seals behind, until it goes
    ASSERT_EQ(writer.AppendBlock(records.Block("a")).code(), 0);
    digest = DigestAt(writer.Find("a"), 0, 500);
    v1::AppendEntry seal;
    seal.mutable_sequence()->set_id("a");
    seal.mutable_seal()->set_length(500);
    ASSERT_EQ(writer.Append(seal).code(), 0);
  }
  EXPECT_NE(digest, 0);

  const auto gets = [&] {
    WriterLock lock(disk.mutex);
    return disk.gets;
  };
  const auto read_by = [&](int threads) {
    Life fresh(disk);
    const int64_t start = gets();
    std::vector<std::thread> readers;
    for (int i = 0; i < threads; ++i) {
      readers.emplace_back([&] { EXPECT_EQ(DigestAt(fresh.Find("a"), 0, 500), digest); });
    }
    for (std::thread& reader : readers) reader.join();
    return gets() - start;
  };
  const int64_t once = read_by(1);
  disk.slowness = absl::Milliseconds(5);  // for all to come while the first reads
  EXPECT_EQ(read_by(8), once);
}

// Read back from the log, and from the whole form that a seal leaves.
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
  const Ranges expected = {{0, MissingReason::kNeverArrived},
                           {1, MissingReason::kInvalidLogProb},
                           {12, MissingReason::kInvalidLogProb},
                           {20, MissingReason::kNeverArrived}};
  v1::AppendEntry gap, seal;
  gap.mutable_sequence()->set_id("a");
  gap.mutable_gap()->set_first_position(1);
  gap.mutable_gap()->set_length(19);
  gap.mutable_gap()->set_reason(v1::MISSING_REASON_INVALID_LOG_PROB);
  seal.mutable_sequence()->set_id("a");
  seal.mutable_seal()->set_length(20);
  {
    Life writer(disk);
    ASSERT_EQ(writer.Append(gap).code(), 0);
    ASSERT_EQ(writer.AppendBlock(records.Block("a", 4, 0, 0, 8)).code(), 0);
    ASSERT_EQ(writer.Append(gap).code(), 0) << "again";
  }
  EXPECT_EQ(missing_of(false), expected);
  {
    Life writer(disk);
    ASSERT_EQ(writer.Append(seal).code(), 0);
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
    for (auto& [key, value] : disk.items) value[value.size() / 2] ^= 1;
  }
  EXPECT_EQ(next.Find("evicted"), Run::Found(MissingReason::kCorrupt));
}

TEST(StoredCacheTest, WhatWasAckedIsThereWhoeverWritesAtTheSameTime) {
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
TEST(StoredCacheTest, ANewSequenceNeverReplacesWhatWasStoredAndEvictedMeanwhile) {
  Disk disk;
  const Records records = RecordGenerator(kSlots, 1000, 8).NextRecords(10);
  Life life(disk);
  ASSERT_EQ(life.AppendBlock(records.Block("a", 0, 0, 0, 5)).code(), 0);
  ASSERT_TRUE(life.run().EvictOldest());
  const SequenceName name{"a", 0};
  const std::shared_ptr<Sequence> created = *life.run().FindOrCreate(name);
  {
    SequenceLog& log = LogOf(*created);
    WriterLock order(log.order);
    life.stored().Note(log, {.kind = LogEntry::Kind::kSeal, .position = 3});
  }
  EXPECT_TRUE(absl::IsUnavailable(life.stored().Write(life.run(), name, *created)));
  EXPECT_EQ(life.AppendBlock(records.Block("a", 5, 0, 5, 5)).code(), 0);
  uint64_t digest = 0;
  for (uint32_t p = 0; p < 10; ++p) digest += DigestOf(records, p, p);
  EXPECT_EQ(DigestAt(Life(disk).Find("a"), 0, 10), digest);
}

TEST(StoredCacheTest, OfWhatWasReleasedNothingButTheReasonStays) {
  Disk disk;
  const Records records = RecordGenerator(kSlots, 1000, 6).NextRecords(10);
  auto life = std::make_unique<Life>(disk);
  for (int i = 0; i < 20; ++i) {
    const std::string id = absl::StrCat("sequence ", i);
    ASSERT_EQ(life->AppendBlock(records.Block(id)).code(), 0);
    if (i % 2 == 0) {
      v1::AppendEntry seal;
      seal.mutable_sequence()->set_id(id);
      seal.mutable_seal()->set_length(10);
      ASSERT_EQ(life->Append(seal).code(), 0);
    }
    EXPECT_EQ(*life->Release({id}), 1);
  }
  life.reset();
  WriterLock lock(disk.mutex);
  EXPECT_EQ(disk.items.size(), 21) << "the run, and a reason each";
}

}  // namespace
}  // namespace sis
