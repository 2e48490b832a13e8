// Whatever is done ahead, what comes of a message is what comes of its entries one by one.
#include "server/append/blocks_ahead.h"

#include <gtest/gtest.h>

#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/numerics/crc32c.h"
#include "server/testing/cache_fixture.h"
#include "server/testing/record_generator.h"

namespace sis {
namespace {

constexpr int kSlots = 16;
constexpr uint32_t kRecords = 2048;
// So many positions of a message are worth a second worker.
constexpr uint32_t kTwoLanes = 2 * BlocksAhead::kLaneSlots / kSlots;
static_assert(kTwoLanes == 2 * kRecords);

Records SomeRecords() { return RecordGenerator(kSlots, 1000, /*seed=*/1).NextRecords(kRecords); }

// A cache, and a stream into it that has so many workers to help.
struct Stream {
  explicit Stream(int threads, int64_t bytes = int64_t{64} << 20)
      : cache(bytes), workers(threads), run(cache.CreateRun("r", SmallConfig(kSlots))) {
    absl::StatusOr<Ingest> opened =
        Ingest::Open(cache.runs, cache.room_queue, HeaderOf(*run), Caller(), &workers);
    EXPECT_TRUE(opened.ok()) << opened.status();
    ingest.emplace(*std::move(opened));
  }

  std::string Apply(const v1::AppendBatch& batch) {
    const absl::StatusOr<v1::AppendResponse> response = ApplyAtOnce(*ingest, batch);
    EXPECT_TRUE(response.ok()) << response.status();
    return response->DebugString();
  }

  // Of the sequences that are there; doesn't count as use.
  std::string Names() {
    std::string names;
    for (const SequenceDescription& of : run->ListSequences(std::nullopt, 1 << 20)) {
      absl::StrAppend(&names, ToString(of.name), "\n");
    }
    return names;
  }

  // All that is known of what was appended.
  std::string State() {
    std::string state;
    for (const SequenceDescription& of : run->ListSequences(std::nullopt, 1 << 20)) {
      const auto sequence = std::get<std::shared_ptr<Sequence>>(run->FindToChange(of.name));
      const Sequence::Reader reader(*sequence);
      absl::StrAppend(&state, ToString(of.name), " ", of.committed_length, " ", of.positions, " ",
                      of.sealed, " ", of.newest_version, " ", of.bytes, " ",
                      reader.Digest(0, of.committed_length), "\n");
    }
    const RunTotals totals = run->counters().totals();
    absl::StrAppend(&state, totals.ingested_positions, " positions, ", totals.ingested_bytes,
                    " bytes; refused:");
    for (const double refused : totals.refused_entries_by_code) {
      absl::StrAppend(&state, " ", refused);
    }
    absl::StrAppend(&state, "\n", cache.registry.budget().used(), " bytes charged, ",
                    cache.arena->used_bytes(), " in the arena\n");
    return state;
  }

  Cache cache;
  WorkerPool workers;
  std::shared_ptr<Run> run;
  std::optional<Ingest> ingest;
};

uint32_t CrcOf(const v1::Block& block) {
  uint32_t crc = 0;
  for (const std::string* array : {&block.sampled_ids(), &block.sampled_log_probs(),
                                   &block.top_k_ids(), &block.top_k_log_probs()}) {
    crc = ExtendCrc32c(crc, std::as_bytes(std::span(*array)));
  }
  return crc;
}

// Messages of few sequences: blocks that follow, repeat, contradict, leave gaps or are no good,
// truncations and seals. Sequences come and go.
class RandomMessages {
 public:
  v1::AppendBatch Next() {
    v1::AppendBatch batch;
    for (uint32_t n = Uniform(30, 70); n > 0; --n) FillEntry(*batch.add_entries());
    ++messages_;
    return batch;
  }

 private:
  uint32_t Uniform(uint32_t low, uint32_t high) { return random_.Uniform(low, high); }

  void FillEntry(v1::AppendEntry& entry) {
    v1::SequenceRef sequence;
    sequence.set_id(absl::StrCat("s", messages_ / 3 + Uniform(0, 9)));
    sequence.set_attempt(Uniform(0, 1));
    uint32_t& end = ends_[absl::StrCat(sequence.id(), "/", sequence.attempt())];
    const uint32_t kind = Uniform(0, 99);
    if (kind == 0) return;
    if (kind < 4) {
      *entry.mutable_truncate()->mutable_sequence() = sequence;
      entry.mutable_truncate()->set_length(end = Uniform(0, end));
    } else if (kind < 8) {
      *entry.mutable_seal()->mutable_sequence() = sequence;
      entry.mutable_seal()->set_length(end + Uniform(0, 2) - std::min(end, 1u));
    } else {
      const uint32_t count = Uniform(1, 300);
      uint32_t first = std::min(end, kRecords - count);
      if (kind < 16) first = Uniform(0, kRecords - count);
      const uint32_t row = kind == 16 ? Uniform(0, kRecords - count) : first;
      v1::Block& block = *entry.mutable_block();
      block = records_.Block(sequence.id(), first, /*policy_version=*/kind == 17, row, count);
      *block.mutable_sequence() = sequence;
      if (kind < 60) block.set_crc32c(CrcOf(block));
      if (kind == 18) block.set_crc32c(1);
      if (kind == 19) block.mutable_top_k_ids()->pop_back();
      if (kind == 20) block.clear_sampled_ids();
      if (kind == 21) block.mutable_sequence()->clear_id();
      if (kind == 22) block.set_first_position(UINT32_MAX);
      if (kind == 23) block.mutable_sampled_ids()->replace(0, 4, "\xff\xff\xff\xff");
      end = std::max(end, first + count);
    }
  }

  const Records records_ = SomeRecords();
  RecordGenerator random_{kSlots, 1000, /*seed=*/20261125};
  uint32_t messages_ = 0;
  std::map<std::string, uint32_t> ends_;
};

TEST(BlocksAheadTest, WhatComesOfAMessageDoesNotDependOnWorkers) {
  RandomMessages messages;
  Stream one_by_one(1), two(2), four(4);
  for (int message = 0; message < 60; ++message) {
    const v1::AppendBatch batch = messages.Next();
    const std::string response = one_by_one.Apply(batch);
    const std::string state = one_by_one.State();
    for (Stream* stream : {&two, &four}) {
      ASSERT_EQ(stream->Apply(batch), response) << message;
      ASSERT_EQ(stream->State(), state) << message;
    }
  }
  const RunTotals totals = one_by_one.run->counters().totals();
  for (const auto code : {absl::StatusCode::kInvalidArgument, absl::StatusCode::kAlreadyExists,
                          absl::StatusCode::kFailedPrecondition}) {
    EXPECT_GT(totals.refused_entries_by_code.at(static_cast<int>(code)), 10) << code;
  }
  // Nor does the order in which sequences go depend on which worker came first.
  const v1::AppendBatch last = messages.Next();
  ASSERT_EQ(two.Apply(last), four.Apply(last));
  ASSERT_GT(two.run->sequences(), 10);
  do {
    ASSERT_EQ(two.Names(), four.Names());
    ASSERT_EQ(two.run->EvictOldest(), four.run->EvictOldest());
  } while (two.run->sequences() > 0);
}

TEST(BlocksAheadTest, WhatLacksRoomIsTheSameWithWorkers) {
  const Records records = SomeRecords();
  v1::AppendBatch batch;
  for (int i = 0; i < 8; ++i) {
    *batch.add_entries()->mutable_block() = records.Block(absl::StrCat("s", i));
  }
  // Room for none, for some, for all; at last read ones go for those that follow.
  for (int pages = 1; pages <= 8 * 32 + 16; pages += 29) {
    const int64_t bytes = pages * OnePage(kSlots);
    Stream one_by_one(1, bytes), two(2, bytes);
    for (int time = 0; time < 2; ++time) {
      ASSERT_EQ(one_by_one.Apply(batch), two.Apply(batch)) << pages;
      ASSERT_EQ(one_by_one.State(), two.State()) << pages;
    }
  }
}

class PreparedTest : public testing::Test {
 protected:
  // Which entries are stored ahead: "x" if so.
  std::string Ahead(const v1::AppendBatch& batch, WorkerPool* workers) {
    const std::vector<AppendEntryView> entries = EntriesOf(batch);
    BlocksAhead ahead(run_, cache_.registry.budget(), cache_.room_queue, workers);
    std::string stored;
    for (size_t i = 0; i < entries.size(); ++i) {
      ahead.Prepare(std::span(entries).subspan(i), nullptr);
      stored += ahead.next() != nullptr ? 'x' : '-';
      ahead.Advance();
    }
    return stored;
  }
  v1::AppendBatch TwoBlocks(const std::string& a, const std::string& b, uint32_t b_count) {
    v1::AppendBatch batch;
    *batch.add_entries()->mutable_block() = records_.Block(a, 0, 0, 0, kRecords / 2);
    *batch.add_entries()->mutable_block() =
        records_.Block(a, kRecords / 2, 0, kRecords / 2, kRecords / 2);
    *batch.add_entries()->mutable_block() = records_.Block(b, 0, 0, 0, b_count);
    return batch;
  }

  const Records records_ = SomeRecords();
  Cache cache_;
  std::shared_ptr<sis::Run> run_ = cache_.CreateRun("r", SmallConfig(kSlots));
  WorkerPool workers_{2};
};

TEST_F(PreparedTest, LargeMessagesOfSeveralSequencesAreDoneAhead) {
  EXPECT_EQ(Ahead(TwoBlocks("a", "b", kRecords), &workers_), "xxx");
  EXPECT_EQ(run_->CommittedLength({"a", 0}), kRecords);
  EXPECT_EQ(run_->CommittedLength({"b", 0}), kRecords);
  // Sent again, too.
  EXPECT_EQ(Ahead(TwoBlocks("a", "b", kRecords), &workers_), "xxx");
  EXPECT_EQ(run_->Describe().positions, 2 * kRecords);

  EXPECT_EQ(Ahead(TwoBlocks("small", "message", kRecords - 1), &workers_), "---");
  EXPECT_EQ(Ahead(TwoBlocks("the same", "the same", kRecords), &workers_), "---");
  EXPECT_EQ(Ahead(TwoBlocks("without", "workers", kRecords), nullptr), "---");
  EXPECT_EQ(run_->Describe().sequences, 2);
}

TEST_F(PreparedTest, APieceThatBeginsWithSmallBlocksIsNotLookedAt) {
  v1::AppendBatch batch;
  for (size_t i = 0; i < BlocksAhead::kFirstEntries; ++i) {
    *batch.add_entries()->mutable_block() = records_.Block("small", i, 0, i, 1);
  }
  batch.MergeFrom(TwoBlocks("a", "b", kRecords));
  EXPECT_EQ(Ahead(batch, &workers_), std::string(batch.entries_size(), '-'));
  EXPECT_EQ(run_->Describe().sequences, 0);
}

TEST_F(PreparedTest, ASequenceWaitsFromTheFirstEntryThatIsNotJustAppended) {
  v1::AppendBatch batch = TwoBlocks("a", "b", kRecords);
  *batch.add_entries()->mutable_block() = records_.Block("a", kRecords, 0, 0, 10);
  batch.mutable_entries(1)->mutable_block()->mutable_sampled_ids()->replace(0, 4,
                                                                            "\xff\xff\xff\xff");
  batch.add_entries()->mutable_seal()->mutable_sequence()->set_id("b");
  *batch.add_entries()->mutable_block() = records_.Block("b", kRecords, 0, 0, 10);
  batch.add_entries();
  *batch.add_entries()->mutable_block() = records_.Block("no good");
  batch.mutable_entries(7)->mutable_block()->set_crc32c(1);
  EXPECT_EQ(Ahead(batch, &workers_), "x-x-----");
  EXPECT_EQ(run_->CommittedLength({"a", 0}), kRecords / 2);
  EXPECT_EQ(run_->Describe().sequences, 2) << "a refused block leaves no sequence behind";
}

TEST_F(PreparedTest, NothingIsDoneAheadWhereRoomMayBeShort) {
  v1::RunConfig config = SmallConfig(kSlots);
  config.set_byte_quota(2 * Sequence::kBaseBytes + 24 * OnePage(kSlots));
  run_ = cache_.CreateRun("short", config);
  EXPECT_EQ(Ahead(TwoBlocks("a", "b", kRecords), &workers_), "---");
  EXPECT_EQ(run_->Describe().bytes, 0);
}

}  // namespace
}  // namespace sis
