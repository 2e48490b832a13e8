#include "server/append/ingest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <tuple>

#include "kernels/block/block.h"
#include "server/append/ingest_fixture.h"
#include "server/testing/cache_fixture.h"
#include "server/testing/record_generator.h"

namespace sis {
namespace {

using absl::StatusCode;
using testing::HasSubstr;

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
  v1::RunConfig other_vocabulary = SmallConfig(kSlots);
  other_vocabulary.set_vocabulary_size(999);
  Records narrow = records_;
  narrow.slots = 1;
  narrow.ids.resize(narrow.size());
  narrow.log_probs.resize(narrow.size());
  // A block of positions 20 to 29.
  const auto entry = [&](const Records& records, const v1::RunConfig& config, uint32_t first) {
    return records.Block("new", first, 0, 0, 10).Entry(config);
  };
  const v1::AppendEntry good = entry(records_, SmallConfig(kSlots), 20);
  v1::AppendEntry no_id = good, long_id = good, empty = good, short_by_one = good, damaged = good,
                  invalid = good;
  no_id.mutable_sequence()->clear_id();
  long_id.mutable_sequence()->set_id(std::string(257, 'x'));
  empty.set_block("");
  short_by_one.mutable_block()->pop_back();
  damaged.mutable_block()->back() ^= 1;
  {
    const std::span bytes = std::as_writable_bytes(std::span(*invalid.mutable_block()));
    const BlockView view = *OpenBlock(bytes, /*checksums=*/true);
    const float nan = NAN;
    std::memcpy(bytes.data() +
                    (reinterpret_cast<const std::byte*>(&view.sampled_log_probs[3]) - bytes.data()),
                &nan, sizeof nan);
    SealBlock(bytes);
  }
  const std::tuple<v1::AppendEntry, const char*> cases[] = {
      {no_id, "sequence.id: 0 bytes"},
      {long_id, "sequence.id: 257 bytes"},
      {empty, "block, bytes: 0"},
      {short_by_one, "block, bytes: "},
      {damaged, "block, crc32c: "},
      {invalid, "sampled_log_probs at position 23: nan"},
      {entry(narrow, SmallConfig(1), 20), "block, slots: 1, but run 'r' has top_k 4"},
      {entry(records_, other_vocabulary, 20),
       "block, vocabulary_size: 999, but run 'r' has vocabulary_size 1000"},
      {entry(records_, SmallConfig(kSlots), 4194295),
       "block, first_position: 4194295 + 10 positions is beyond 4194304"},
  };
  for (const auto& [sent, message] : cases) {
    for (const std::string id : {"a", "new"}) {
      v1::AppendEntry bad = sent;
      const bool names_it = bad.sequence().id() == "new";
      if (names_it) bad.mutable_sequence()->set_id(id);
      const v1::Ack ack = Entry(bad);
      EXPECT_EQ(CodeOf(ack), StatusCode::kInvalidArgument) << message << ack.message();
      EXPECT_THAT(ack.message(), HasSubstr(message));
      if (names_it) {
        EXPECT_THAT(ack.message(), HasSubstr("sequence '" + id + "' attempt 0: "));
        EXPECT_EQ(ack.committed_length(), id == "a" ? 10 : 0);
      }
      EXPECT_EQ(run_->Describe(), before) << message;
    }
  }
  EXPECT_EQ(Entry(good).code(), 0) << "unchanged, it is good";
}

// The run's encoding and mass bind only workers, so the server stores any block unchanged.
TEST_F(IngestTest, ABlockIsStoredAsItIs) {
  v1::RunConfig config = SmallConfig(kSlots);
  config.set_mass(0.65);
  const auto run = cache_.CreateRun("cut", config);
  const v1::AppendEntry entry = records_.Block("a").Entry(LosslessConfig(kSlots));
  ASSERT_EQ(IngestEntry(cache_, *run, entry).code(), 0);
  const auto sequence = std::get<std::shared_ptr<Sequence>>(run->Find({"a", 0}));
  Sequence::Reader(*sequence).ForEachPiece(0, 10, [&](const Sequence::Reader::Piece& piece) {
    ASSERT_NE(piece.block, nullptr);
    EXPECT_TRUE(std::ranges::equal(piece.block->bytes(), std::as_bytes(std::span(entry.block()))));
  });
  EXPECT_EQ(run->counters().totals().ingested_bytes, entry.block().size());
  EXPECT_EQ(run->counters().totals().ingested_slots, 10 * kSlots);
  EXPECT_EQ(CodeOf(AppendBlock(cache_, *run, records_.Block("a"))), StatusCode::kAlreadyExists)
      << "in another encoding it is something else";
}

TEST_F(IngestTest, BadHeadersAreRefusedByName) {
  // Returns the sampling of the stream that was opened last.
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
      s.set_log_probs(v1::Sampling::LOG_PROBS_PROCESSED);
      s.set_presence_penalty(penalty);
    });
    invalid("sampling.frequency_penalty", [&](auto&, auto& s) {
      s.set_log_probs(v1::Sampling::LOG_PROBS_PROCESSED);
      s.set_frequency_penalty(penalty);
    });
  }
  for (const double penalty : {0.0, -1.1, HUGE_VAL, static_cast<double>(NAN)}) {
    invalid("sampling.repetition_penalty", [&](auto&, auto& s) {
      s.set_log_probs(v1::Sampling::LOG_PROBS_PROCESSED);
      s.set_repetition_penalty(penalty);
    });
  }
  // Settings that change the distribution, unless the log-probs include them.
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
    processed.mutable_sampling()->set_log_probs(v1::Sampling::LOG_PROBS_PROCESSED);
    EXPECT_TRUE(Ingest::Open(cache_.runs, processed).ok()) << message;
    EXPECT_EQ(sampling(), processed.sampling().SerializeAsString());
  }
  v1::AppendHeader unknown = HeaderOf(*run_);
  v1::Sampling& with_more = *unknown.mutable_sampling();
  with_more.GetReflection()->MutableUnknownFields(&with_more)->AddLengthDelimited(1000, "any size");
  EXPECT_TRUE(Ingest::Open(cache_.runs, unknown).ok());
  EXPECT_EQ(sampling(), HeaderOf(*run_).sampling().SerializeAsString());
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
  *batch.add_entries() = EntryOf(*run_, records_.Block("a", 0, 0, 0, 5));
  *batch.add_entries() = EntryOf(*run_, records_.Block("a", 5, 0, 5, 5));
  batch.mutable_entries(1)->clear_block();
  batch.add_entries();
  *batch.add_entries() = SealEntry("a", 3);
  *batch.add_entries() = EntryOf(*run_, records_.Block("b", 7, 0, 0, 2));
  *batch.add_entries() = EntryOf(*run_, records_.Block("a", 5, 0, 5, 5));
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

TEST_F(IngestTest, AGapIsKeptUntilABlockFillsIt) {
  struct Case {
    std::string what;
    v1::AppendEntry entry;
    StatusCode code;
    uint32_t committed_length;
    std::string message = "";
  };
  const auto block = [&](uint32_t first, uint32_t count) {
    return EntryOf(*run_, records_.Block("a", first, 0, 0, count));
  };
  const auto gap_of = [](uint32_t first, int reason) {
    return GapEntry("a", first, 1, static_cast<v1::MissingReason>(reason));
  };
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
      {"no reason of a gap", gap_of(0, v1::MISSING_REASON_CORRUPT), StatusCode::kInvalidArgument,
       10, "gap.reason: 7; must be"},
      {"no reason", gap_of(0, 0), StatusCode::kInvalidArgument, 10, "gap.reason: 0; must be"},
      {"an unknown reason", gap_of(0, 12), StatusCode::kInvalidArgument, 10,
       "gap.reason: 12; must be"},
      {"equal in the last byte", gap_of(0, 256 + 9), StatusCode::kInvalidArgument, 10,
       "gap.reason: 265; must be"},
      {"for another reason", gap_of(7, v1::MISSING_REASON_NO_LOG_PROB), StatusCode::kAlreadyExists,
       10, "position 7 is missing for another reason, invalid_log_prob"},
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

TEST_F(IngestTest, SealsAreChecked) {
  ASSERT_EQ(Block(records_.Block("a")).code(), 0);
  EXPECT_EQ(CodeOf(Entry(SealEntry("", 3))), StatusCode::kInvalidArgument);
  const v1::Ack beyond = Entry(SealEntry("a", 4194305));
  EXPECT_EQ(CodeOf(beyond), StatusCode::kInvalidArgument);
  EXPECT_THAT(beyond.message(), HasSubstr("seal.length 4194305"));
  EXPECT_EQ(run_->Describe().sealed_sequences, 0);
  EXPECT_EQ(Entry(SealEntry("a", 12)).code(), 0);
  EXPECT_EQ(Block(records_.Block("a", 10, 0, 0, 2)).committed_length(), 12);
}

TEST_F(IngestTest, ASupersededRunEndsTheStream) {
  absl::StatusOr<Ingest> ingest = Ingest::Open(cache_.runs, HeaderOf(*run_));
  ASSERT_TRUE(ingest.ok());
  v1::AppendBatch batch;
  *batch.add_entries() = EntryOf(*run_, records_.Block("a"));
  const auto next = cache_.CreateRun("r", SmallConfig(kSlots), 2);
  EXPECT_EQ(ApplyAtOnce(*ingest, batch).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(next->Describe().sequences, 0);
}

}  // namespace
}  // namespace sis
