#include "server/fetch/fetch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "server/shared_memory/shared_segment.h"
#include "server/testing/cache_fixture.h"
#include "server/testing/record_generator.h"
#include "server/wire/segment_range.h"

namespace sis {
namespace {

using absl::StatusCode;
using testing::HasSubstr;

constexpr int kSlots = 5;

// All messages of a fetch, put together: the header, and per slice what Block would hold.
struct Fetched {
  v1::FetchTopKHeader header;
  std::vector<v1::Block> slices;
  int chunks = 0;
};

void Add(v1::FetchTopKRequest& request, const std::string& id, uint32_t first, uint32_t length) {
  v1::Slice& slice = *request.add_slices();
  slice.mutable_sequence()->set_id(id);
  slice.set_first_position(first);
  slice.set_length(length);
}

class FetchTest : public testing::Test {
 protected:
  Fetched Do(const v1::FetchTopKRequest& request) {
    Fetched fetched;
    absl::StatusOr<Fetch> fetch = Fetch::Open(run_, request);
    EXPECT_TRUE(fetch.ok()) << fetch.status();
    if (fetch.ok()) Read(*fetch, fetched);
    return fetched;
  }
  static void Read(Fetch& fetch, Fetched& fetched) {
    v1::FetchTopKResponse message;
    ASSERT_TRUE(fetch.Next(message));
    ASSERT_TRUE(message.has_header());
    fetched.header = message.header();
    fetched.slices.resize(message.header().slices_size());
    // Where the next row belongs.
    int slice = 0;
    uint32_t row = 0;
    while (fetch.Next(message)) {
      ASSERT_TRUE(message.has_chunk());
      ++fetched.chunks;
      const v1::FetchTopKChunk& chunk = message.chunk();
      const auto skip_full = [&] {
        while (slice < fetched.header.slices_size() &&
               row == fetched.header.slices(slice).length()) {
          ++slice;
          row = 0;
        }
      };
      skip_full();
      ASSERT_LT(slice, fetched.header.slices_size());
      EXPECT_EQ(chunk.slice(), slice);
      EXPECT_EQ(chunk.first_position(), fetched.header.slices(slice).first_position() + row);
      EXPECT_LE(message.ByteSizeLong(), (1 << 20) + 1000);
      for (uint32_t done = 0; done < chunk.length(); skip_full()) {
        ASSERT_LT(slice, fetched.header.slices_size());
        const uint32_t count =
            std::min(chunk.length() - done, fetched.header.slices(slice).length() - row);
        const auto add = [&](const std::string& array, std::string& to) {
          const size_t row_bytes = array.size() / chunk.length();
          to += array.substr(done * row_bytes, count * row_bytes);
        };
        v1::Block& block = fetched.slices[slice];
        add(chunk.sampled_ids(), *block.mutable_sampled_ids());
        add(chunk.sampled_log_probs(), *block.mutable_sampled_log_probs());
        add(chunk.top_k_ids(), *block.mutable_top_k_ids());
        add(chunk.top_k_log_probs(), *block.mutable_top_k_log_probs());
        done += count;
        row += count;
      }
    }
    EXPECT_FALSE(fetch.Next(message));
  }
  static void ExpectRows(const v1::Block& got, const v1::Block& expected) {
    EXPECT_EQ(got.sampled_ids(), expected.sampled_ids());
    EXPECT_EQ(got.sampled_log_probs(), expected.sampled_log_probs());
    EXPECT_EQ(got.top_k_ids(), expected.top_k_ids());
    EXPECT_EQ(got.top_k_log_probs(), expected.top_k_log_probs());
  }
  static std::vector<std::tuple<uint32_t, uint32_t, uint32_t, v1::MissingReason>> Missing(
      const Fetched& fetched) {
    std::vector<std::tuple<uint32_t, uint32_t, uint32_t, v1::MissingReason>> missing;
    for (const v1::MissingRange& range : fetched.header.missing()) {
      missing.emplace_back(range.slice(), range.first_position(), range.length(), range.reason());
    }
    return missing;
  }

  Cache cache_;
  WorkerPool workers_{3};
  std::shared_ptr<sis::Run> run_ = cache_.CreateRun("r", LosslessConfig(kSlots));
  RecordGenerator generator_{kSlots, 1000, 31};
};

TEST_F(FetchTest, ReturnsWhatWasRecorded) {
  const Records a = generator_.NextRecords(300);
  const Records b = generator_.NextRecords(70);
  AppendBlock(cache_, *run_, a.Block("a"));
  AppendBlock(cache_, *run_, b.Block("b"));
  v1::FetchTopKRequest request;
  Add(request, "a", 0, 0);
  Add(request, "b", 5, 60);
  Add(request, "a", 100, 0);
  const Fetched fetched = Do(request);
  EXPECT_EQ(fetched.header.lease_id(), 0);
  EXPECT_EQ(fetched.header.top_k(), kSlots);
  ASSERT_EQ(fetched.header.slices_size(), 3);
  EXPECT_EQ(fetched.header.slices(0).length(), 300);
  EXPECT_EQ(fetched.header.slices(1).length(), 60);
  EXPECT_EQ(fetched.header.slices(2).length(), 200);
  EXPECT_EQ(fetched.header.missing_size(), 0);
  ExpectRows(fetched.slices[0], a.Block("a"));
  ExpectRows(fetched.slices[1], b.Block("b", 5, 0, 5, 60));
  ExpectRows(fetched.slices[2], a.Block("a", 100, 0, 100, 200));
  // Digests are of what is recorded, so the parts' add up to the whole's.
  v1::FetchTopKRequest parts;
  Add(parts, "a", 0, 100);
  Add(parts, "a", 100, 200);
  const Fetched in_parts = Do(parts);
  EXPECT_EQ(in_parts.header.slices(0).record_digest() + in_parts.header.slices(1).record_digest(),
            fetched.header.slices(0).record_digest());
  EXPECT_EQ(in_parts.header.slices(1).record_digest(), fetched.header.slices(2).record_digest());
}

TEST_F(FetchTest, WhatASealedSequenceLacksIsMissing) {
  const auto append = [&](v1::AppendEntry entry) {
    return IngestEntry(cache_, *run_, std::move(entry)).code();
  };
  const auto seal = [](const std::string& id, uint32_t length) {
    v1::AppendEntry entry;
    entry.mutable_seal()->mutable_sequence()->set_id(id);
    entry.mutable_seal()->set_length(length);
    return entry;
  };
  const auto gap = [](const std::string& id, uint32_t first, uint32_t length) {
    v1::AppendEntry entry;
    entry.mutable_gap()->mutable_sequence()->set_id(id);
    entry.mutable_gap()->set_first_position(first);
    entry.mutable_gap()->set_length(length);
    entry.mutable_gap()->set_reason(v1::INVALID_LOG_PROB);
    return entry;
  };
  const Records records = generator_.NextRecords(10);
  v1::Block bad = records.Block("refused");
  bad.mutable_sampled_ids()->resize(4);
  ASSERT_NE(AppendBlock(cache_, *run_, bad).code(), 0);
  ASSERT_EQ(append(seal("refused", 10)), 0);
  ASSERT_EQ(AppendBlock(cache_, *run_, records.Block("cut", 0, 0, 0, 6)).code(), 0);
  ASSERT_EQ(append(seal("cut", 10)), 0);
  ASSERT_EQ(append(gap("gaps", 2, 6)), 0);
  ASSERT_EQ(AppendBlock(cache_, *run_, records.Block("gaps", 4, 0, 4, 2)).code(), 0);
  ASSERT_EQ(append(gap("only a gap", 0, 3)), 0);
  v1::FetchTopKRequest request;
  for (const char* id : {"refused", "cut", "gaps", "only a gap"}) Add(request, id, 0, 0);
  Add(request, "gaps", 5, 5);
  const Fetched fetched = Do(request);
  const std::vector<uint32_t> lengths = {10, 10, 8, 3, 5};
  for (int i = 0; i < 5; ++i) EXPECT_EQ(fetched.header.slices(i).length(), lengths[i]) << i;
  using Range = std::tuple<uint32_t, uint32_t, uint32_t, v1::MissingReason>;
  EXPECT_THAT(Missing(fetched),
              testing::ElementsAre(
                  Range(0, 0, 10, v1::NEVER_ARRIVED), Range(1, 6, 4, v1::NEVER_ARRIVED),
                  Range(2, 0, 2, v1::NEVER_ARRIVED), Range(2, 2, 2, v1::INVALID_LOG_PROB),
                  Range(2, 6, 2, v1::INVALID_LOG_PROB), Range(3, 0, 3, v1::INVALID_LOG_PROB),
                  Range(4, 6, 2, v1::INVALID_LOG_PROB), Range(4, 8, 2, v1::NEVER_ARRIVED)));
  ExpectRows(fetched.slices[4], [&] {
    v1::Block rows = records.Block("gaps", 5, 0, 5, 1);
    const v1::Block absent = fetched.slices[3];
    for (int i = 0; i < 4; ++i) {
      *rows.mutable_sampled_ids() += absent.sampled_ids().substr(0, 4);
      *rows.mutable_sampled_log_probs() += absent.sampled_log_probs().substr(0, 4);
      *rows.mutable_top_k_ids() += absent.top_k_ids().substr(0, 4 * kSlots);
      *rows.mutable_top_k_log_probs() += absent.top_k_log_probs().substr(0, 4 * kSlots);
    }
    return rows;
  }());
}

TEST_F(FetchTest, LongSlicesComeInChunks) {
  const Records records = generator_.NextRecords(60000);  // 48 bytes each
  ASSERT_EQ(AppendBlock(cache_, *run_, records.Block("a")).code(), 0);
  v1::FetchTopKRequest request;
  Add(request, "a", 0, 0);
  const Fetched fetched = Do(request);
  EXPECT_EQ(fetched.chunks, 3);
  ExpectRows(fetched.slices[0], records.Block("a"));
}

TEST_F(FetchTest, ChunksSpanSlicesForWhoExpectsThem) {
  const Records records = generator_.NextRecords(30000);
  ASSERT_EQ(AppendBlock(cache_, *run_, records.Block("long")).code(), 0);
  v1::FetchTopKRequest request;
  for (int i = 0; i < 70; ++i) {
    const std::string id = absl::StrCat("s", i);
    AppendBlock(cache_, *run_, records.Block(id, 0, 0, i, 1 + i * 7 % 40));
    Add(request, id, 0, 0);
  }
  Add(request, "never", 3, 7);
  Add(request, "empty", 0, 0);
  for (const auto& [more, apart, together] : {std::tuple(0, 71, 1), {3, 77, 5}}) {
    for (int i = 0; i < more; ++i) Add(request, "long", i, 0);
    request.set_chunks_span_slices(false);
    const Fetched expected = Do(request);
    EXPECT_EQ(expected.chunks, apart);
    request.set_chunks_span_slices(true);
    const Fetched fetched = Do(request);
    EXPECT_EQ(fetched.chunks, together);
    EXPECT_EQ(fetched.header.SerializeAsString(), expected.header.SerializeAsString());
    ASSERT_EQ(fetched.slices.size(), expected.slices.size());
    for (size_t i = 0; i < expected.slices.size(); ++i) {
      ExpectRows(fetched.slices[i], expected.slices[i]);
    }
    ExpectRows(fetched.slices[5], records.Block("s5", 0, 0, 5, 36));
  }
}

TEST_F(FetchTest, HoldsNoSequenceLongerThanItsRowsTake) {
  const auto is_held = [&](const char* id) {
    auto sequence = std::get<std::shared_ptr<Sequence>>(run_->Find({id, 0}));
    return sequence.use_count() > 2;  // the run, and this
  };
  for (const char* id : {"a", "b"}) {
    AppendBlock(cache_, *run_, generator_.NextRecords(10).Block(id));
  }
  v1::FetchTopKRequest request;
  for (const char* id : {"a", "b", "a"}) Add(request, id, 0, 0);
  absl::StatusOr<Fetch> fetch = Fetch::Open(run_, request);
  v1::FetchTopKResponse message;
  for (const auto& [a, b] : {std::pair(true, true), {true, true}, {true, false}, {false, false}}) {
    ASSERT_TRUE(fetch->Next(message));
    EXPECT_EQ(is_held("a"), a);
    EXPECT_EQ(is_held("b"), b);
  }
  EXPECT_FALSE(fetch->Next(message));
}

TEST_F(FetchTest, MissingRowsHoldSentinels) {
  AppendBlock(cache_, *run_, generator_.NextRecords(1).Block("a", 1, 0, 0, 1));
  v1::FetchTopKRequest request;
  Add(request, "a", 0, 1);
  const v1::Block row = Do(request).slices[0];
  EXPECT_EQ(row.sampled_ids(), "\xff\xff\xff\xff");
  float sampled;
  std::memcpy(&sampled, row.sampled_log_probs().data(), 4);
  EXPECT_TRUE(std::isnan(sampled));
  for (int slot = 0; slot < kSlots; ++slot) {
    EXPECT_EQ(row.top_k_ids().substr(4 * slot, 4), "\xff\xff\xff\xff");
    float log_prob;
    std::memcpy(&log_prob, row.top_k_log_probs().data() + 4 * slot, 4);
    EXPECT_EQ(log_prob, -HUGE_VALF);
  }
}

TEST_F(FetchTest, GoneSequencesSayWhy) {
  AppendBlock(cache_, *run_, generator_.NextRecords(10).Block("a"));
  run_->Release({"a", 0});
  v1::FetchTopKRequest request;
  Add(request, "a", 3, 5);
  Add(request, "never", 0, 7);
  const Fetched fetched = Do(request);
  EXPECT_THAT(Missing(fetched), testing::ElementsAre(std::tuple(0, 3, 5, v1::RELEASED),
                                                     std::tuple(1, 0, 7, v1::NEVER_ARRIVED)));
  EXPECT_EQ(fetched.header.slices(0).record_digest(), 0);
  EXPECT_EQ(fetched.slices[0].sampled_ids().size(), 20);
}

TEST_F(FetchTest, NeighbouringMissingRangesAreOne) {
  v1::RunConfig config = LosslessConfig(kSlots);
  config.set_max_staleness(0);
  run_ = cache_.CreateRun("m", config);
  const Records records = generator_.NextRecords(400);
  // [30, 150) stale, in two versions and over two page ends; [150, 310) never came; [310, 320) is
  // fresh.
  AppendBlock(cache_, *run_, records.Block("a", 0, 3, 0, 30));
  AppendBlock(cache_, *run_, records.Block("a", 30, 1, 30, 70));
  AppendBlock(cache_, *run_, records.Block("a", 100, 2, 100, 50));
  AppendBlock(cache_, *run_, records.Block("a", 310, 3, 310, 10));
  ASSERT_TRUE(run_->AdvanceVersion(3).ok());
  v1::FetchTopKRequest request;
  Add(request, "a", 0, 400);
  Add(request, "a", 320, 80);
  const Fetched fetched = Do(request);
  EXPECT_THAT(Missing(fetched), testing::ElementsAre(std::tuple(0, 30, 120, v1::STALE),
                                                     std::tuple(0, 150, 160, v1::NEVER_ARRIVED),
                                                     std::tuple(0, 320, 80, v1::NEVER_ARRIVED),
                                                     std::tuple(1, 320, 80, v1::NEVER_ARRIVED)));
}

TEST_F(FetchTest, HeaderAndRowsAgreeOnWhatIsStale) {
  v1::RunConfig config = LosslessConfig(kSlots);
  config.set_max_staleness(0);
  run_ = cache_.CreateRun("m", config);
  const Records records = generator_.NextRecords(10);
  AppendBlock(cache_, *run_, records.Block("a"));
  v1::FetchTopKRequest request;
  Add(request, "a", 0, 10);
  absl::StatusOr<Fetch> fetch = Fetch::Open(run_, request);
  v1::FetchTopKResponse message;
  ASSERT_TRUE(fetch->Next(message));
  EXPECT_EQ(message.header().missing_size(), 0);
  ASSERT_TRUE(run_->AdvanceVersion(1).ok());
  ASSERT_TRUE(fetch->Next(message));
  EXPECT_EQ(message.chunk().sampled_ids(), records.Block("a").sampled_ids());
}

TEST_F(FetchTest, LeasesAreGrantedIfAskedFor) {
  AppendBlock(cache_, *run_, generator_.NextRecords(10).Block("a"));
  v1::FetchTopKRequest request;
  Add(request, "a", 0, 0);
  request.set_lease_seconds(5);
  const Fetched fetched = Do(request);
  EXPECT_NE(fetched.header.lease_id(), 0);
  EXPECT_EQ(run_->Describe().leases, 1);
  EXPECT_FALSE(run_->EvictOldest());
  EXPECT_TRUE(run_->EndLease(fetched.header.lease_id()));
  EXPECT_TRUE(run_->EvictOldest());
}

TEST_F(FetchTest, BadRequestsAreRefusedAndTakeNoLease) {
  AppendBlock(cache_, *run_, generator_.NextRecords(10).Block("a"));
  const auto refused = [&](const std::string& message, auto change) {
    v1::FetchTopKRequest request;
    Add(request, "a", 0, 0);
    request.set_lease_seconds(5);
    change(request);
    const absl::Status status = Fetch::Open(run_, request).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
    EXPECT_EQ(run_->Describe().leases, 0) << message;
  };
  refused("slices: none", [](auto& r) { r.clear_slices(); });
  refused("slices[0].sequence.id", [](auto& r) { r.mutable_slices(0)->clear_sequence(); });
  refused("slices[1] of sequence 'b' attempt 0: first_position 4194304 + length 1",
          [](auto& r) { Add(r, "b", 4194304, 1); });
  refused("slices[1]", [](auto& r) { Add(r, "b", UINT32_MAX, UINT32_MAX); });
  refused("lease_seconds: -1", [](auto& r) { r.set_lease_seconds(-1); });
  refused("lease_seconds: 3601", [](auto& r) { r.set_lease_seconds(3601); });
  refused("lease_seconds: nan", [](auto& r) { r.set_lease_seconds(NAN); });
  refused("lease_seconds: inf", [](auto& r) { r.set_lease_seconds(HUGE_VAL); });
  refused("arrays[0]: 0 is no array", [](auto& r) { r.add_arrays(v1::RECORD_ARRAY_UNSPECIFIED); });
  refused("arrays[1]: 5 is no array", [](auto& r) {
    r.add_arrays(v1::TOP_K_IDS);
    r.add_arrays(static_cast<v1::RecordArray>(5));
  });
  refused("16777220 positions in all", [](auto& r) {
    for (int i = 0; i < 4; ++i) Add(r, "b", 0, 4194304);
    Add(r, "b", 0, 4);
    r.mutable_slices()->DeleteSubrange(0, 1);
  });
}

TEST_F(FetchTest, KeepsItsSequencesWhileItReads) {
  const Records records = generator_.NextRecords(10);
  AppendBlock(cache_, *run_, records.Block("a"));
  v1::FetchTopKRequest request;
  Add(request, "a", 0, 0);
  absl::StatusOr<Fetch> fetch = Fetch::Open(run_, request);
  ASSERT_TRUE(fetch.ok());
  EXPECT_FALSE(run_->EvictOldest());
  run_->Release({"a", 0});
  Fetched fetched;
  Read(*fetch, fetched);
  ExpectRows(fetched.slices[0], records.Block("a"));
}

// --- Into a segment
// --------------------------------------------------------------------------------

class FetchIntoSegmentTest : public FetchTest {
 protected:
  FetchIntoSegmentTest() {
    run_ = cache_.CreateRun("m", [] {
      v1::RunConfig config = LosslessConfig(kSlots);
      config.set_max_staleness(0);
      return config;
    }());
    // Longer than what is copied at once, with a gap, stale positions and another sequence.
    AppendBlock(cache_, *run_, generator_.NextRecords(7000).Block("a", 0, 3, 0, 7000));
    AppendBlock(cache_, *run_, generator_.NextRecords(400).Block("a", 7100, 2, 0, 400));
    AppendBlock(cache_, *run_, generator_.NextRecords(5).Block("b", 0, 3, 0, 5));
    EXPECT_TRUE(run_->AdvanceVersion(3).ok());
    Add(request_, "a", 33, 0);
    Add(request_, "never", 0, 7);
    Add(request_, "empty", 0, 0);
    Add(request_, "b", 0, 0);
    arrays_.LieIn(segment_);
  }

  static constexpr uint32_t kLong = 100000;
  static constexpr uint64_t kRows = 7467 + 7 + 5;
  static uint64_t Aligned(uint64_t bytes) { return (bytes + 63) / 64 * 64; }
  static uint64_t Needed(uint64_t rows = kRows) {
    return 2 * Aligned(rows * 4) + Aligned(rows * 4 * kSlots) + rows * 4 * kSlots;
  }
  std::string Read(const std::string& part) const {
    const auto parsed = SegmentRange::Parse(part, segment_->size());
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    std::string bytes(parsed->size, '\0');
    segment_->Read(parsed->offset, parsed->size, bytes.data());
    return bytes;
  }

  v1::FetchTopKRequest request_;
  const std::shared_ptr<SharedSegment> segment_ = *SharedSegment::Make(8 << 20);
  ReceivedArrays arrays_;
};

TEST_F(FetchIntoSegmentTest, HoldsWhatTheMessagesWouldHold) {
  // More than what is copied in a turn, in several stretches.
  AppendBlock(cache_, *run_, generator_.NextRecords(kLong).Block("long", 0, 3, 0, kLong));
  Add(request_, "long", 0, kLong / 2);
  Add(request_, "b", 0, 0);
  Add(request_, "long", kLong / 2, kLong / 4);
  Add(request_, "long", 3 * kLong / 4, 0);
  constexpr uint64_t kAll = kRows + kLong + 5;
  const Fetched in_messages = Do(request_);
  v1::Block expected;
  for (const v1::Block& slice : in_messages.slices) {
    *expected.mutable_sampled_ids() += slice.sampled_ids();
    *expected.mutable_sampled_log_probs() += slice.sampled_log_probs();
    *expected.mutable_top_k_ids() += slice.top_k_ids();
    *expected.mutable_top_k_log_probs() += slice.top_k_log_probs();
  }
  for (const int most_turns : {0, 1, 1000}) {
    constexpr uint64_t kOffset = 4096 + 64;
    request_.mutable_answers()->set_offset(kOffset);
    request_.mutable_answers()->set_bytes(Needed(kAll));
    const std::string before(segment_->size(), static_cast<char>(0x55 + most_turns));
    segment_->Write(0, before.size(), before.data());
    absl::StatusOr<Fetch> fetch = Fetch::Open(run_, request_, arrays_, &workers_);
    ASSERT_TRUE(fetch.ok()) << fetch.status();
    EXPECT_FALSE(fetch->CopySome());  // the header is first
    v1::FetchTopKResponse message;
    ASSERT_TRUE(fetch->Next(message));
    EXPECT_EQ(message.header().SerializeAsString(), in_messages.header.SerializeAsString());
    int turns = 0;
    while (turns < most_turns && fetch->CopySome()) ++turns;
    EXPECT_GE(turns, std::min(most_turns, 1));
    EXPECT_LT(turns, 100);
    ASSERT_TRUE(fetch->Next(message));
    const v1::FetchTopKChunk& chunk = message.chunk();
    EXPECT_EQ(chunk.length(), kAll);
    EXPECT_EQ(Read(chunk.sampled_ids()), expected.sampled_ids());
    EXPECT_EQ(Read(chunk.sampled_log_probs()), expected.sampled_log_probs());
    EXPECT_EQ(Read(chunk.top_k_ids()), expected.top_k_ids());
    EXPECT_EQ(Read(chunk.top_k_log_probs()), expected.top_k_log_probs());
    EXPECT_FALSE(fetch->Next(message));
    // Nothing is written beside the range.
    std::string after(segment_->size(), '\0');
    segment_->Read(0, after.size(), after.data());
    EXPECT_EQ(after.substr(0, kOffset), before.substr(0, kOffset));
    EXPECT_EQ(after.substr(kOffset + Needed(kAll)), before.substr(kOffset + Needed(kAll)));
  }
}

// Every choice of arrays: those that are wanted are the same bytes as ever, the others are empty.
TEST_F(FetchIntoSegmentTest, SomeArraysAreThoseOfAll) {
  const Fetched all = Do(request_);
  const auto fields = [](auto& rows) {
    return std::array{rows.mutable_sampled_ids(), rows.mutable_sampled_log_probs(),
                      rows.mutable_top_k_ids(), rows.mutable_top_k_log_probs()};
  };
  const auto array = [](int i) { return static_cast<v1::RecordArray>(v1::SAMPLED_IDS + i); };
  for (int wanted = 1; wanted < 16; ++wanted) {
    request_.clear_arrays();
    request_.clear_answers();
    uint64_t needed = 0;
    for (int i = 3; i >= 0; --i) {
      if ((wanted >> i & 1) == 0) continue;
      request_.add_arrays(array(i));
      request_.add_arrays(array(i));
      needed += Aligned(kRows * 4 * (i < 2 ? 1 : kSlots));
    }
    Fetched some = Do(request_);
    EXPECT_EQ(some.header.SerializeAsString(), all.header.SerializeAsString());
    v1::Block expected;  // of all slices
    for (size_t slice = 0; slice < all.slices.size(); ++slice) {
      v1::Block rows = all.slices[slice];
      for (int i = 0; i < 4; ++i) {
        if ((wanted >> i & 1) == 0) fields(rows)[i]->clear();
        *fields(expected)[i] += *fields(rows)[i];
      }
      ExpectRows(some.slices[slice], rows);
    }

    request_.mutable_answers()->set_bytes(needed);
    absl::StatusOr<Fetch> fetch = Fetch::Open(run_, request_, arrays_, &workers_);
    ASSERT_TRUE(fetch.ok()) << fetch.status();
    v1::FetchTopKResponse message;
    ASSERT_TRUE(fetch->Next(message));
    EXPECT_EQ(message.header().SerializeAsString(), all.header.SerializeAsString());
    ASSERT_TRUE(fetch->Next(message));
    EXPECT_EQ(message.chunk().length(), kRows);
    v1::FetchTopKChunk chunk = message.chunk();
    for (int i = 0; i < 4; ++i) {
      const std::string& part = *fields(chunk)[i];
      EXPECT_EQ(part.empty() ? "" : Read(part), *fields(expected)[i]) << wanted << " " << i;
      EXPECT_EQ(part.empty(), (wanted >> i & 1) == 0);
    }
  }
}

TEST_F(FetchIntoSegmentTest, OfNothingThereIsNothing) {
  v1::FetchTopKRequest request;
  for (const char* id : {"never", "empty", "never"}) Add(request, id, 0, 0);
  request.mutable_answers()->set_bytes(64);
  absl::StatusOr<Fetch> fetch = Fetch::Open(run_, request, arrays_);
  ASSERT_TRUE(fetch.ok()) << fetch.status();
  v1::FetchTopKResponse message;
  ASSERT_TRUE(fetch->Next(message));
  EXPECT_EQ(message.header().slices_size(), 3);
  ASSERT_TRUE(fetch->Next(message));
  EXPECT_EQ(message.chunk().length(), 0);
  EXPECT_FALSE(fetch->Next(message));
}

TEST_F(FetchIntoSegmentTest, RangesThatDoNotFitAreRefusedAndTakeNoLease) {
  request_.set_lease_seconds(5);
  const auto refused = [&](uint64_t offset, uint64_t bytes, const std::string& message,
                           const ReceivedArrays& arrays) {
    request_.mutable_answers()->set_offset(offset);
    request_.mutable_answers()->set_bytes(bytes);
    const absl::Status status = Fetch::Open(run_, request_, arrays, &workers_).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
    EXPECT_EQ(run_->Describe().leases, 0) << message;
  };
  refused(0, Needed() - 1, absl::StrCat("answers.bytes: ", Needed() - 1, ", but ", Needed()),
          arrays_);
  refused(32, Needed(), "answers.offset: 32", arrays_);
  refused(segment_->size() - 64, Needed(), "answers: ", arrays_);
  refused(uint64_t{0} - 64, Needed(), "answers: ", arrays_);
  refused(0, Needed(), "answers: set, but segment is not", ReceivedArrays());
}

}  // namespace
}  // namespace sis
