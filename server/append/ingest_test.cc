#include "server/append/ingest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/numerics/crc32c.h"
#include "server/append/block_reader.h"
#include "server/append/ingest_fixture.h"
#include "server/testing/cache_fixture.h"
#include "server/testing/record_generator.h"

namespace sis {
namespace {

using absl::StatusCode;
using testing::HasSubstr;

TEST_F(IngestTest, AcksWhatIsStored) {
  const v1::Ack ack = Block(records_.Block("a", 5, 3, 0, 10));
  EXPECT_EQ(ack.code(), 0);
  EXPECT_EQ(ack.message(), "");
  EXPECT_EQ(ack.sequence().id(), "a");
  EXPECT_EQ(ack.committed_length(), 15);
  const auto sequence = std::get<std::shared_ptr<Sequence>>(run_->Find({"a", 0}));
  EXPECT_EQ(sequence->positions(), 10);
  EXPECT_EQ(sequence->newest_version(), 3);
}

TEST_F(IngestTest, ABlockThatIsStaleOnArrivalIsStored) {
  v1::RunConfig config = SmallConfig(kSlots);
  config.set_max_staleness(1);
  run_ = cache_.CreateRun("r", config, 2);
  ASSERT_TRUE(run_->AdvanceVersion(7).ok());
  ASSERT_EQ(Block(records_.Block("a", 0, 6, 0, 4)).code(), 0);
  const v1::Ack ack = Block(records_.Block("a", 4, 5, 4, 6));
  EXPECT_EQ(ack.code(), 0) << ack.message();
  EXPECT_EQ(ack.committed_length(), 10);
  EXPECT_EQ(Block(records_.Block("stale as a whole", 0, 5, 0, 4)).code(), 0);
  run_->DropExpired();
  EXPECT_TRUE(std::holds_alternative<std::shared_ptr<Sequence>>(run_->Find({"a", 0})));
  EXPECT_EQ(std::get<MissingReason>(run_->Find({"stale as a whole", 0})), MissingReason::kStale);
}

TEST_F(IngestTest, BadBlocksAreRefusedByNameAndChangeNothing) {
  ASSERT_EQ(Block(records_.Block("a")).code(), 0);
  const RunDescription before = run_->Describe();
  const float infinity = HUGE_VALF;
  struct Case {
    std::vector<std::string> message;
    std::function<void(v1::Block&)> change;
  };
  // Each block is of positions 20 to 29; row 3 is position 23.
  const Case cases[] = {
      {{"sequence.id: 0 bytes"}, [](auto& b) { b.mutable_sequence()->clear_id(); }},
      {{"sequence.id", "257 bytes"},
       [](auto& b) { b.mutable_sequence()->set_id(std::string(257, 'x')); }},
      {{"sampled_ids: empty"}, [](auto& b) { b.clear_sampled_ids(); }},
      {{"sampled_ids: 41 bytes"}, [](auto& b) { b.mutable_sampled_ids()->push_back('x'); }},
      {{"sampled_log_probs: 36 bytes", "40"},
       [](auto& b) { b.mutable_sampled_log_probs()->resize(36); }},
      {{"top_k_ids: 164 bytes", "160"}, [](auto& b) { b.mutable_top_k_ids()->resize(164); }},
      {{"top_k_log_probs: 0 bytes", "160"}, [](auto& b) { b.clear_top_k_log_probs(); }},
      {{"first_position 4194295", "4194304"}, [](auto& b) { b.set_first_position(4194295); }},
      {{"first_position 4294967295"}, [](auto& b) { b.set_first_position(UINT32_MAX); }},
      {{"crc32c: 1,"}, [](auto& b) { b.set_crc32c(1); }},
      {{"sampled_ids at position 23", "-1"}, [](auto& b) { Put(b.mutable_sampled_ids(), 3, -1); }},
      {{"sampled_ids at position 23", "1000"},
       [](auto& b) { Put(b.mutable_sampled_ids(), 3, 1000); }},
      {{"sampled_log_probs at position 23", "nan"},
       [](auto& b) { Put(b.mutable_sampled_log_probs(), 3, NAN); }},
      {{"sampled_log_probs at position 23", "inf"},
       [&](auto& b) { Put(b.mutable_sampled_log_probs(), 3, infinity); }},
      {{"sampled_log_probs at position 23", "-inf"},
       [&](auto& b) { Put(b.mutable_sampled_log_probs(), 3, -infinity); }},
      {{"sampled_log_probs at position 23", "0.015625"},
       [](auto& b) { Put(b.mutable_sampled_log_probs(), 3, std::nextafter(0x1p-6f, 1.0f)); }},
      {{"sampled_log_probs at position 23", "-1.5", "slot 2"},
       [](auto& b) { Put(b.mutable_sampled_log_probs(), 3, -1.5f); }},
      {{"top_k_ids at position 23, slot 1", "-2"},
       [](auto& b) { Put(b.mutable_top_k_ids(), 13, -2); }},
      {{"top_k_ids at position 23, slot 1", "1000"},
       [](auto& b) { Put(b.mutable_top_k_ids(), 13, 1000); }},
      {{"top_k_ids at position 23, slot 1", "10 stands twice"},
       [](auto& b) { Put(b.mutable_top_k_ids(), 13, 10); }},
      {{"top_k_log_probs at position 23, slot 1", "unused slot"},
       [](auto& b) { Put(b.mutable_top_k_ids(), 13, -1); }},
      {{"top_k_ids at position 23, slot 1", "after an unused slot"},
       [&](auto& b) {
         Put(b.mutable_top_k_ids(), 12, -1);
         Put(b.mutable_top_k_log_probs(), 12, -infinity);
       }},
      {{"top_k_log_probs at position 23, slot 3", "nan"},
       [](auto& b) { Put(b.mutable_top_k_log_probs(), 15, NAN); }},
      {{"top_k_log_probs at position 23, slot 3", "-inf"},
       [&](auto& b) { Put(b.mutable_top_k_log_probs(), 15, -infinity); }},
      {{"top_k_log_probs at position 23, slot 3", "not sorted"},
       [](auto& b) { Put(b.mutable_top_k_log_probs(), 15, -0.5f); }},
      {{"top_k_ids at position 23, slot 1", "ties go by id"},
       [](auto& b) {
         Put(b.mutable_top_k_ids(), 12, 99);
         Put(b.mutable_top_k_log_probs(), 12, std::log(0.3f));
       }},
      {{"top_k_log_probs at position 23", "sum to", "above 1"},
       [](auto& b) { Put(b.mutable_top_k_log_probs(), 12, std::log(0.6f)); }},
  };
  for (const Case& c : cases) {
    for (const std::string id : {"a", "new"}) {
      v1::Block block = records_.Block(id, 20, 0, 0, 10);
      c.change(block);
      const v1::Ack ack = Block(block);
      EXPECT_EQ(CodeOf(ack), StatusCode::kInvalidArgument) << c.message[0] << ack.message();
      for (const std::string& part : c.message) EXPECT_THAT(ack.message(), HasSubstr(part));
      if (block.sequence().id() == id) {
        EXPECT_THAT(ack.message(), HasSubstr("sequence '" + id + "' attempt 0: "));
        EXPECT_EQ(ack.committed_length(), id == "a" ? 10 : 0);
      }
      EXPECT_EQ(run_->Describe(), before) << c.message[0];
    }
  }
  EXPECT_EQ(Block(records_.Block("a", 20, 0, 0, 10)).code(), 0) << "unchanged, it is good";
}

TEST_F(IngestTest, ChecksumsCoverTheFourArrays) {
  v1::Block block = records_.Block("a");
  const std::string all =
      block.sampled_ids() + block.sampled_log_probs() + block.top_k_ids() + block.top_k_log_probs();
  block.set_crc32c(ExtendCrc32c(0, std::as_bytes(std::span(all))));
  EXPECT_EQ(Block(block).code(), 0);
}

TEST_F(IngestTest, BadHeadersAreRefusedByName) {
  // Of the stream that was opened last.
  const auto sampling = [&] { return run_->recent_events().events().sampling; };
  const auto refused = [&](StatusCode code, const std::string& message, auto change) {
    v1::AppendHeader header = HeaderOf(*run_);
    change(header, *header.mutable_sampling());
    const std::string before = sampling();
    const absl::Status status = Ingest::Open(cache_.runs, header).status();
    EXPECT_EQ(status.code(), code) << message;
    EXPECT_EQ(sampling(), before);
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  };
  const auto invalid = [&](const std::string& message, auto change) {
    refused(StatusCode::kInvalidArgument, message, change);
  };
  refused(StatusCode::kNotFound, "'none'",
          [](auto& h, auto&) { h.mutable_run()->set_run_id("none"); });
  refused(StatusCode::kFailedPrecondition, "incarnation 1, not 2",
          [](auto& h, auto&) { h.mutable_run()->set_incarnation(2); });
  invalid("header.worker: 257 bytes", [](auto& h, auto&) { h.set_worker(std::string(257, 'w')); });
  invalid("header.vocabulary_size: 999", [](auto& h, auto&) { h.set_vocabulary_size(999); });
  invalid("sampling.log_probs: 0", [](auto&, auto& s) { s.clear_log_probs(); });
  for (const double temperature : {0.0, -1.0, HUGE_VAL, static_cast<double>(NAN)}) {
    invalid("sampling.temperature", [&](auto&, auto& s) { s.set_temperature(temperature); });
  }
  for (const double top_p : {0.0, 1.1, static_cast<double>(NAN)}) {
    invalid("sampling.top_p", [&](auto&, auto& s) { s.set_top_p(top_p); });
  }
  invalid("sampling.top_k: -2", [](auto&, auto& s) { s.set_top_k(-2); });
  for (const double min_p : {-0.1, 1.1, static_cast<double>(NAN)}) {
    invalid("sampling.min_p", [&](auto&, auto& s) { s.set_min_p(min_p); });
  }
  for (const double penalty : {HUGE_VAL, -HUGE_VAL, static_cast<double>(NAN)}) {
    invalid("sampling.presence_penalty", [&](auto&, auto& s) {
      s.set_log_probs(v1::Sampling::PROCESSED);
      s.set_presence_penalty(penalty);
    });
    invalid("sampling.frequency_penalty", [&](auto&, auto& s) {
      s.set_log_probs(v1::Sampling::PROCESSED);
      s.set_frequency_penalty(penalty);
    });
  }
  for (const double penalty : {0.0, -1.1, HUGE_VAL, static_cast<double>(NAN)}) {
    invalid("sampling.repetition_penalty", [&](auto&, auto& s) {
      s.set_log_probs(v1::Sampling::PROCESSED);
      s.set_repetition_penalty(penalty);
    });
  }
  // What changes the distribution, if it is not in the log-probs.
  const std::pair<const char*, std::function<void(v1::Sampling&)>> changes[] = {
      {"sampling.temperature: 0.7", [](auto& s) { s.set_temperature(0.7); }},
      {"sampling.top_p: 0.9", [](auto& s) { s.set_top_p(0.9); }},
      {"sampling.top_k: 50", [](auto& s) { s.set_top_k(50); }},
      {"sampling.min_p: 0.1", [](auto& s) { s.set_min_p(0.1); }},
      {"sampling.presence_penalty: 0.5", [](auto& s) { s.set_presence_penalty(0.5); }},
      {"sampling.frequency_penalty: -0.5", [](auto& s) { s.set_frequency_penalty(-0.5); }},
      {"sampling.repetition_penalty: 1.1", [](auto& s) { s.set_repetition_penalty(1.1); }},
      {"sampling.logit_bias", [](auto& s) { s.set_logit_bias(true); }},
      {"sampling.grammar", [](auto& s) { s.set_grammar(true); }},
  };
  for (const auto& [message, change] : changes) {
    invalid(message, [&change = change](auto&, auto& s) { change(s); });
    v1::AppendHeader processed = HeaderOf(*run_);
    change(*processed.mutable_sampling());
    processed.mutable_sampling()->set_log_probs(v1::Sampling::PROCESSED);
    EXPECT_TRUE(Ingest::Open(cache_.runs, processed).ok()) << message;
    EXPECT_EQ(sampling(), processed.sampling().SerializeAsString());
  }
  v1::AppendHeader neutral = HeaderOf(*run_);
  neutral.mutable_sampling()->set_top_p(1);
  neutral.mutable_sampling()->set_top_k(-1);
  neutral.mutable_sampling()->set_min_p(0);
  neutral.mutable_sampling()->set_repetition_penalty(1);
  EXPECT_TRUE(Ingest::Open(cache_.runs, neutral).ok());
}

TEST_F(IngestTest, ARefusedEntryLeavesItsNeighboursAlone) {
  absl::StatusOr<Ingest> ingest = Ingest::Open(cache_.runs, HeaderOf(*run_));
  ASSERT_TRUE(ingest.ok());
  v1::AppendBatch batch;
  *batch.add_entries()->mutable_block() = records_.Block("a", 0, 0, 0, 5);
  *batch.add_entries()->mutable_block() = records_.Block("a", 5, 0, 5, 5);
  batch.mutable_entries(1)->mutable_block()->clear_sampled_log_probs();
  batch.add_entries();
  *batch.add_entries() = SealEntry("a", 3);
  *batch.add_entries()->mutable_block() = records_.Block("b", 7, 0, 0, 2);
  *batch.add_entries()->mutable_block() = records_.Block("a", 5, 0, 5, 5);
  *batch.add_entries() = SealEntry("a", 11);
  const absl::StatusOr<v1::AppendResponse> response = ApplyAtOnce(*ingest, batch);
  ASSERT_TRUE(response.ok());
  ASSERT_EQ(response->acks_size(), 7);
  const std::pair<StatusCode, uint32_t> expected[] = {
      {StatusCode::kOk, 5},
      {StatusCode::kInvalidArgument, 5},
      {StatusCode::kInvalidArgument, 0},
      {StatusCode::kFailedPrecondition, 5},
      {StatusCode::kOk, 9},
      {StatusCode::kOk, 10},
      {StatusCode::kOk, 10},
  };
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(CodeOf(response->acks(i)), expected[i].first) << i << response->acks(i).message();
    EXPECT_EQ(response->acks(i).committed_length(), expected[i].second) << i;
  }
  EXPECT_THAT(response->acks(2).message(), HasSubstr("entry: neither"));
  EXPECT_EQ(run_->Describe().positions, 12);
  EXPECT_EQ(run_->Describe().sealed_sequences, 1);
}

TEST_F(IngestTest, ResendingIsAckedAgainAndConflictsAreNot) {
  ASSERT_EQ(Block(records_.Block("a", 0, 1, 0, 10)).code(), 0);
  const RunDescription before = run_->Describe();
  EXPECT_EQ(Block(records_.Block("a", 0, 1, 0, 10)).code(), 0);
  EXPECT_EQ(Block(records_.Block("a", 2, 1, 2, 3)).code(), 0) << "a part of it";
  EXPECT_EQ(run_->Describe(), before);

  v1::Block other = records_.Block("a", 5, 1, 0, 10);
  Put(other.mutable_sampled_ids(), 2, 11);
  Put(other.mutable_sampled_log_probs(), 2, std::log(0.3f));
  const v1::Ack conflict = Block(other);
  EXPECT_EQ(CodeOf(conflict), StatusCode::kAlreadyExists);
  EXPECT_EQ(conflict.message(),
            "sequence 'a' attempt 0: position 7 is committed with other content");
  EXPECT_EQ(CodeOf(Block(records_.Block("a", 5, 2, 0, 10))), StatusCode::kAlreadyExists)
      << "another policy version";
  EXPECT_EQ(run_->Describe(), before) << "positions 10 to 14 are not stored";
}

TEST_F(IngestTest, AGapIsKeptUntilABlockFillsIt) {
  struct Case {
    std::string what;
    v1::AppendEntry entry;
    StatusCode code;
    uint32_t committed_length;
    std::string message = "";
  };
  const auto block = [&](uint32_t first, uint32_t count) {
    v1::AppendEntry entry;
    *entry.mutable_block() = records_.Block("a", first, 0, 0, count);
    return entry;
  };
  v1::AppendEntry other_reason = GapEntry("a", 0, 1), no_reason = GapEntry("a", 0, 1);
  other_reason.mutable_gap()->set_reason(v1::EVICTED);
  no_reason.mutable_gap()->clear_reason();
  v1::AppendEntry no_name = GapEntry("", 0, 1);
  const Case cases[] = {
      {"alone", GapEntry("a", 3, 4), StatusCode::kOk, 7},
      {"again", GapEntry("a", 3, 4), StatusCode::kOk, 7},
      {"longer", GapEntry("a", 5, 5), StatusCode::kOk, 10},
      {"before it", block(0, 3), StatusCode::kOk, 10},
      {"over records", GapEntry("a", 2, 2), StatusCode::kAlreadyExists, 10,
       "sequence 'a' attempt 0: position 2 has a record"},
      {"fills a part", block(4, 2), StatusCode::kOk, 10},
      {"again, filled in part", GapEntry("a", 3, 4), StatusCode::kOk, 10},
      {"the block again", block(4, 2), StatusCode::kOk, 10},
      {"another block", block(5, 2), StatusCode::kOk, 10},
      {"length 0", GapEntry("a", 20, 0), StatusCode::kInvalidArgument, 10, "gap.length: 0 from"},
      {"too far", GapEntry("a", 4194300, 5), StatusCode::kInvalidArgument, 10,
       "gap.length: 5 from"},
      {"beyond 2^32", GapEntry("a", UINT32_MAX, UINT32_MAX), StatusCode::kInvalidArgument, 10,
       "gap.length: 4294967295 from position 4294967295"},
      {"another reason", other_reason, StatusCode::kInvalidArgument, 10, "gap.reason: 2; must be"},
      {"no reason", no_reason, StatusCode::kInvalidArgument, 10, "gap.reason: 0; must be"},
      {"no name", no_name, StatusCode::kInvalidArgument, 0, "sequence.id"},
      {"a seal that is short", SealEntry("a", 9), StatusCode::kFailedPrecondition, 10},
      {"a seal", SealEntry("a", 11), StatusCode::kOk, 10},
      {"below the seal", GapEntry("a", 10, 1), StatusCode::kOk, 11},
      {"at the seal", GapEntry("a", 11, 1), StatusCode::kFailedPrecondition, 11,
       "position 11 is beyond the seal"},
      {"across the seal", GapEntry("a", 10, 2), StatusCode::kFailedPrecondition, 11},
  };
  for (const Case& c : cases) {
    const v1::Ack ack = Entry(c.entry);
    EXPECT_EQ(CodeOf(ack), c.code) << c.what << ": " << ack.message();
    EXPECT_EQ(ack.committed_length(), c.committed_length) << c.what;
    EXPECT_THAT(ack.message(), HasSubstr(c.message)) << c.what;
  }
  EXPECT_EQ(run_->Describe().positions, 6);
  const auto sequence = std::get<std::shared_ptr<Sequence>>(run_->Find({"a", 0}));
  const Sequence::Reader reader(*sequence);
  ASSERT_EQ(reader.Gaps().size(), 1);
  EXPECT_EQ(reader.Gaps()[0].first_position, 3);
  EXPECT_EQ(reader.Gaps()[0].count, 8);
}

// Each of a sequence's gaps is charged, so that they are bounded as records are.
TEST_F(IngestTest, GapsAreRefusedWhereTheyHaveNoRoom) {
  Cache cache(Sequence::kBaseBytes + HeapBytes("a") + 2 * Sequence::kGapBytes);
  const auto run = cache.CreateRun("r", SmallConfig(kSlots));
  EXPECT_EQ(IngestEntry(cache, *run, GapEntry("a", 0, 1)).code(), 0);
  EXPECT_EQ(IngestEntry(cache, *run, GapEntry("a", 2, 1)).code(), 0);
  EXPECT_EQ(CodeOf(IngestEntry(cache, *run, GapEntry("a", 4, 1))), StatusCode::kResourceExhausted);
  EXPECT_EQ(IngestEntry(cache, *run, GapEntry("a", 1, 1)).code(), 0) << "all become one";
  EXPECT_EQ(IngestEntry(cache, *run, GapEntry("a", 4, 1)).code(), 0);
  EXPECT_EQ(run->Describe().bytes, static_cast<uint64_t>(cache.registry.budget().limit()));
}

// A client that cuts sets itself may leave it out, or have anything there.
TEST_F(IngestTest, WhatStandsBehindTheCutIsNotLookedAt) {
  v1::RunConfig config = SmallConfig(kSlots);
  config.set_mass(0.65);
  const auto good = cache_.CreateRun("good", config);
  const std::vector<std::function<void(v1::Block&)>> changes = {
      [](auto& b) { Put(b.mutable_top_k_ids(), 3, 10); },
      [](auto& b) { Put(b.mutable_top_k_ids(), 2, 1 << 30); },
      [](auto& b) { Put(b.mutable_top_k_ids(), 2, -1); },
      [](auto& b) { Put(b.mutable_top_k_log_probs(), 2, NAN); },
      [](auto& b) { Put(b.mutable_top_k_log_probs(), 3, -0.5f); },
      [](auto& b) { Put(b.mutable_top_k_log_probs(), 3, HUGE_VALF); },
      [](auto& b) { Put(b.mutable_sampled_log_probs(), 0, -7.0f); },  // its slot is cut
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    // Alone it is looked at in another way.
    for (const uint32_t count : {1u, 10u}) {
      const auto bad = cache_.CreateRun(absl::StrCat("bad", i, "-", count), config);
      v1::Block block = records_.Block("a", 0, 0, 0, count);
      v1::Block same = block;
      changes[i](block);
      same.set_sampled_log_probs(block.sampled_log_probs());
      const std::string id = absl::StrCat("a", i, "-", count);
      same.mutable_sequence()->set_id(id);
      ASSERT_EQ(AppendBlock(cache_, *good, same).code(), 0);
      const v1::Ack ack = AppendBlock(cache_, *bad, block);
      EXPECT_EQ(ack.code(), 0) << i << ": " << ack.message();
      const auto digest = [&](sis::Run& run, const std::string& name) {
        const auto sequence = std::get<std::shared_ptr<Sequence>>(run.Find({name, 0}));
        return Sequence::Reader(*sequence).Digest(0, count, 0);
      };
      EXPECT_EQ(digest(*bad, "a"), digest(*good, id)) << i;
      // Where nothing is cut it is refused.
      block.mutable_sequence()->set_id(id);
      EXPECT_EQ(CodeOf(Block(block)), StatusCode::kInvalidArgument) << i;
    }
  }
}

TEST_F(IngestTest, SealsAreChecked) {
  ASSERT_EQ(Block(records_.Block("a")).code(), 0);
  EXPECT_EQ(CodeOf(Entry(SealEntry("", 3))), StatusCode::kInvalidArgument);
  const v1::Ack beyond = Entry(SealEntry("a", 4194305));
  EXPECT_EQ(CodeOf(beyond), StatusCode::kInvalidArgument);
  EXPECT_THAT(beyond.message(), HasSubstr("seal.length 4194305"));
  EXPECT_EQ(CodeOf(Entry(SealEntry("a", 9))), StatusCode::kFailedPrecondition);
  EXPECT_EQ(run_->Describe().sealed_sequences, 0);
  EXPECT_EQ(Entry(SealEntry("a", 12)).code(), 0);
  EXPECT_EQ(Entry(SealEntry("a", 12)).code(), 0) << "idempotent";
  EXPECT_EQ(CodeOf(Entry(SealEntry("a", 13))), StatusCode::kFailedPrecondition);
  EXPECT_EQ(CodeOf(Block(records_.Block("a", 10, 0, 0, 3))), StatusCode::kFailedPrecondition);
  EXPECT_EQ(Block(records_.Block("a", 10, 0, 0, 2)).committed_length(), 12);
}

TEST_F(IngestTest, ASealWithoutPositionsIsKept) {
  EXPECT_EQ(Entry(SealEntry("sealed", 3)).code(), 0);
  EXPECT_EQ(run_->Describe().sequences, 1);
  EXPECT_EQ(CodeOf(Block(records_.Block("sealed"))), StatusCode::kFailedPrecondition);
}

TEST_F(IngestTest, ASupersededRunEndsTheStream) {
  absl::StatusOr<Ingest> ingest = Ingest::Open(cache_.runs, HeaderOf(*run_));
  ASSERT_TRUE(ingest.ok());
  v1::AppendBatch batch;
  *batch.add_entries()->mutable_block() = records_.Block("a");
  const auto next = cache_.CreateRun("r", SmallConfig(kSlots), 2);
  EXPECT_EQ(ApplyAtOnce(*ingest, batch).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(next->Describe().sequences, 0);
}

TEST_F(IngestTest, WithNothingToEvictItSaysWhenToTryAgain) {
  const Records records = PlainRecords(60);
  Cache cache(2 * Sequence::kBaseBytes + ChargeOf(records));
  const auto run = cache.CreateRun("r", SmallConfig(kSlots));
  ASSERT_EQ(AppendBlock(cache, *run, records.Block("a")).code(), 0);
  const std::vector<SequenceName> names = {{"a", 0}};
  run->Keep(names, absl::Hours(1));
  for (const std::string id : {"a", "b"}) {
    const v1::Ack ack = AppendBlock(cache, *run, records.Block(id, 64, 0, 0, 60));
    EXPECT_EQ(CodeOf(ack), StatusCode::kResourceExhausted);
    EXPECT_GT(ack.retry_seconds(), 0);
    EXPECT_THAT(ack.message(), HasSubstr("sequence '" + id + "'"));
    EXPECT_LE(cache.registry.budget().used(), cache.registry.budget().limit());
    EXPECT_EQ(run->Describe().sequences, 1) << "a refused block leaves no sequence behind";
  }
  EXPECT_EQ(AppendBlock(cache, *run, records.Block("a")).code(), 0)
      << "what is there needs no room";
  cache.clock.Advance(absl::Hours(1));
  EXPECT_EQ(AppendBlock(cache, *run, records.Block("b", 64, 0, 0, 60)).code(), 0);
  EXPECT_EQ(run->CommittedLength({"a", 0}), 0) << "evicted for it";
  EXPECT_EQ(CodeOf(AppendBlock(cache, *run, PlainRecords(100).Block("c"))),
            StatusCode::kResourceExhausted)
      << "more than the budget";
}

}  // namespace
}  // namespace sis
