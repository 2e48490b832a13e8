#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/numerics/crc32c.h"
#include "server/append/ingest.h"
#include "server/append/ingest_fixture.h"
#include "server/testing/ragged_block.h"

namespace sis {
namespace {

using absl::StatusCode;
using testing::HasSubstr;

class RaggedBlocksTest : public IngestTest {};

// Blocks, as they lie in memory, and all that is told of the run.
std::string HeldBytes(sis::Run& run, const std::string& id, uint32_t length) {
  const auto sequence = std::get<std::shared_ptr<Sequence>>(run.Find({id, 0}));
  const Sequence::Reader reader(*sequence);
  std::string bytes = std::to_string(reader.Digest(0, length, 0));
  reader.ForEachPiece(0, length, [&](const Sequence::Reader::Piece& piece) {
    const std::span<const std::byte> block = piece.block->bytes();
    bytes.append(reinterpret_cast<const char*>(block.data()), block.size());
  });
  return bytes;
}

TEST_F(RaggedBlocksTest, AreStoredAsPaddedOnes) {
  constexpr int kMostSlots = 40;
  constexpr uint32_t kPositions = 400;
  for (const int slots : {1, 9, kMostSlots}) {
    for (const double mass : {0.0, 0.6, 0.95}) {
      for (const auto encoding : {v1::FLOAT32, v1::FIXED16}) {
        v1::RunConfig config = SmallConfig(slots);
        config.set_mass(mass);
        config.set_log_prob_encoding(encoding);
        // Each in a memory of its own, which both fill in the same way.
        Cache as_padded, as_ragged;
        const auto padded = as_padded.CreateRun("r", config);
        const auto ragged = as_ragged.CreateRun("r", config);
        RecordGenerator generator(slots, 1000, static_cast<uint32_t>(slots));
        Records records = generator.NextRecords(kPositions);
        // Long and short sets come in stretches.
        size_t most = 0;
        for (size_t row = 0; row < kPositions; ++row) {
          if (row % 20 == 0) most = generator.Uniform(0, slots);
          for (size_t slot = row * slots + most; slot < (row + 1) * slots; ++slot) {
            records.ids[slot] = -1;
            records.log_probs[slot] = kMinusInfinity;
          }
        }
        for (uint32_t first = 0; first < kPositions;) {
          const uint32_t count = std::min(generator.Uniform(1, 100), kPositions - first);
          const v1::Block block = records.Block("s", first, 3, first, count);
          const v1::Block same = Ragged(block, slots);
          const v1::Ack ack = AppendBlock(as_padded, *padded, block);
          ASSERT_EQ(ack.code(), 0) << ack.message();
          EXPECT_EQ(AppendBlock(as_ragged, *ragged, same).SerializeAsString(),
                    ack.SerializeAsString());
          ASSERT_EQ(HeldBytes(*ragged, "s", first + count), HeldBytes(*padded, "s", first + count));
          // Each is there already, whichever way it comes.
          EXPECT_EQ(AppendBlock(as_padded, *padded, same).code(), 0);
          EXPECT_EQ(AppendBlock(as_ragged, *ragged, block).code(), 0);
          first += count;
        }
        EXPECT_EQ(ragged->Describe(), padded->Describe());
        const RunTotals of_ragged = ragged->counters().totals();
        const RunTotals of_padded = padded->counters().totals();
        EXPECT_EQ(of_ragged.ingested_positions, of_padded.ingested_positions);
        EXPECT_EQ(of_ragged.ingested_slots, of_padded.ingested_slots);
        EXPECT_EQ(HeldBytes(*ragged, "s", kPositions), HeldBytes(*padded, "s", kPositions));
      }
    }
  }
}

TEST_F(RaggedBlocksTest, BadOnesAreRefusedByNameAndChangeNothing) {
  ASSERT_EQ(Block(records_.Block("a")).code(), 0);
  Records some = records_;  // row 3 uses two slots
  for (const size_t slot : {14, 15}) {
    some.ids[slot] = -1;
    some.log_probs[slot] = -HUGE_VALF;
  }
  v1::RunConfig config = SmallConfig(kSlots);
  config.set_mass(0.65);
  const auto cut = cache_.CreateRun("cut", config);
  struct Case {
    std::vector<std::string> message;
    std::function<void(v1::Block&)> change;
    bool behind_the_cut = false;  // or gone with it
  };
  // Each block is of positions 20 to 29; row 3, position 23, has the slots 12 and 13.
  const Case cases[] = {
      {{"top_k_counts: 18 bytes", "20"}, [](auto& b) { b.mutable_top_k_counts()->resize(18); }},
      {{"top_k_counts: 21 bytes"}, [](auto& b) { b.mutable_top_k_counts()->push_back(0); }},
      {{"top_k_counts at position 23: 5, more than top_k 4"},
       [](auto& b) { Put(b.mutable_top_k_counts(), 3, uint16_t{5}); }},
      {{"top_k_counts at position 29: 65535"},
       [](auto& b) { Put(b.mutable_top_k_counts(), 9, uint16_t{65535}); }},
      {{"top_k_ids: 152 bytes, not the 156 of 39"},
       [](auto& b) { Put(b.mutable_top_k_counts(), 3, uint16_t{3}); }},
      {{"top_k_ids: 152 bytes, not the 0"},
       [](auto& b) { b.mutable_top_k_counts()->assign(20, 0); }},
      {{"top_k_ids: 148 bytes"}, [](auto& b) { b.mutable_top_k_ids()->resize(148); }},
      {{"top_k_log_probs: 0 bytes"}, [](auto& b) { b.clear_top_k_log_probs(); }},
      {{"top_k_ids: 152 bytes, not the 160"}, [](auto& b) { b.clear_top_k_counts(); }},
      {{"top_k_ids at position 23, slot 1: -1, but top_k_counts is 2"},
       [](auto& b) {
         Put(b.mutable_top_k_ids(), 13, -1);
         Put(b.mutable_top_k_log_probs(), 13, -HUGE_VALF);
       }},
      {{"top_k_ids at position 24, slot 0: -1, but top_k_counts is 4"},
       [](auto& b) { Put(b.mutable_top_k_ids(), 14, -1); }},
      {{"top_k_ids at position 23, slot 1", "1000"},
       [](auto& b) { Put(b.mutable_top_k_ids(), 13, 1000); }},
      {{"top_k_ids at position 24, slot 3", "10 stands twice"},
       [](auto& b) { Put(b.mutable_top_k_ids(), 17, 10); },
       true},
      {{"top_k_log_probs at position 24, slot 3", "nan"},
       [](auto& b) { Put(b.mutable_top_k_log_probs(), 17, NAN); },
       true},
      {{"top_k_log_probs at position 23, slot 1", "-inf"},
       [](auto& b) { Put(b.mutable_top_k_log_probs(), 13, -HUGE_VALF); }},
      {{"top_k_log_probs at position 23, slot 1", "not sorted"},
       [](auto& b) { Put(b.mutable_top_k_log_probs(), 13, -0.5f); }},
      {{"top_k_log_probs at position 24", "sum to", "above 1"},
       [](auto& b) { Put(b.mutable_top_k_log_probs(), 14, std::log(0.6f)); },
       true},
      {{"sampled_log_probs at position 24", "slot 2"},
       [](auto& b) { Put(b.mutable_sampled_log_probs(), 4, -1.5f); },
       true},
      {{"crc32c: 1,"}, [](auto& b) { b.set_crc32c(1); }},
  };
  for (const Case& c : cases) {
    for (const auto& run : {run_, cut}) {
      if (c.behind_the_cut && run == cut) continue;
      const RunDescription before = run->Describe();
      v1::Block block = Ragged(some.Block("a", 20, 0, 0, 10), kSlots);
      c.change(block);
      const v1::Ack ack = AppendBlock(cache_, *run, block);
      EXPECT_EQ(CodeOf(ack), StatusCode::kInvalidArgument) << c.message[0];
      for (const std::string& part : c.message) EXPECT_THAT(ack.message(), HasSubstr(part));
      EXPECT_EQ(run->Describe(), before) << c.message[0];
    }
  }
  EXPECT_EQ(Block(Ragged(some.Block("a", 20, 0, 0, 10), kSlots)).code(), 0)
      << "unchanged, it is good";
}

TEST_F(RaggedBlocksTest, AChecksumCoversTheCounts) {
  v1::Block block = Ragged(records_.Block("a"), kSlots);
  std::string all =
      block.sampled_ids() + block.sampled_log_probs() + block.top_k_ids() + block.top_k_log_probs();
  block.set_crc32c(ExtendCrc32c(0, std::as_bytes(std::span(all))));
  EXPECT_THAT(Block(block).message(), HasSubstr("crc32c"));
  all += block.top_k_counts();
  block.set_crc32c(ExtendCrc32c(0, std::as_bytes(std::span(all))));
  EXPECT_EQ(Block(block).code(), 0);
}

TEST_F(RaggedBlocksTest, WhatWouldTakeTooMuchMemoryIsRefused) {
  constexpr size_t kMost = (64 << 20) / (kSlots * 8);
  v1::Block block;
  block.mutable_sequence()->set_id("s");
  for (const size_t positions : {kMost, kMost + 1}) {
    block.set_sampled_ids(std::string(positions * sizeof(int32_t), '\0'));
    block.set_sampled_log_probs(std::string(positions * sizeof(float), '\0'));
    block.set_top_k_counts(std::string(positions * sizeof(uint16_t), '\0'));
    const v1::Ack ack = Block(block);
    EXPECT_EQ(CodeOf(ack), positions == kMost ? StatusCode::kOk : StatusCode::kInvalidArgument)
        << ack.message();
    if (positions > kMost)
      EXPECT_THAT(ack.message(), HasSubstr("top_k_counts: too many positions"));
  }
}

// sis_ingest_bytes_total counts the bytes that were sent, not those of padded sets.
TEST_F(RaggedBlocksTest, BytesAreThoseThatCame) {
  ASSERT_EQ(Block(records_.Block("a")).code(), 0);
  EXPECT_EQ(run_->counters().totals().ingested_bytes, 10 * (8 + 8 * kSlots));
  ASSERT_EQ(Block(Ragged(records_.Block("b"), kSlots)).code(), 0);
  EXPECT_EQ(run_->counters().totals().ingested_bytes, 2 * 10 * (8 + 8 * kSlots) + 10 * 2);
}

}  // namespace
}  // namespace sis
