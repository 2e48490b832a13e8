#include "server/fetch/fetch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "server/testing/cache_fixture.h"
#include "server/testing/record_generator.h"

namespace sis {
namespace {

using absl::StatusCode;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kSlots = 5;

using Ranges = std::vector<std::tuple<uint32_t, uint32_t, v1::MissingReason>>;

// A slice, assembled from its entries in several messages.
struct FetchedSlice {
  std::vector<std::string> blocks = {};
  Ranges missing = {};
  uint32_t length = 0;
  uint64_t digest = 0;
  bool complete = false;
};

void Add(v1::FetchTopKRequest& request, const std::string& id, uint32_t first, uint32_t length) {
  v1::Slice& slice = *request.add_slices();
  slice.mutable_sequence()->set_id(id);
  slice.set_first_position(first);
  slice.set_length(length);
}

class FetchTest : public testing::Test {
 protected:
  // Appends positions [first, first + count) of the records at the same positions of the sequence.
  void Append(const std::string& id, const Records& records, uint32_t first, uint32_t count,
              uint64_t version = 0) {
    const v1::Ack ack = AppendBlock(cache_, *run_, records.Block(id, first, version, first, count));
    ASSERT_EQ(ack.code(), 0) << ack.message();
  }

  std::vector<FetchedSlice> Do(const v1::FetchTopKRequest& request) {
    absl::StatusOr<Fetch> fetch = Fetch::Open(run_, request);
    EXPECT_TRUE(fetch.ok()) << fetch.status();
    return fetch.ok() ? Read(*fetch) : std::vector<FetchedSlice>();
  }
  std::vector<FetchedSlice> Read(Fetch& fetch) {
    std::vector<FetchedSlice> slices;
    messages_ = 0;
    for (v1::FetchTopKResponse message; fetch.Next(message);) AddTo(slices, message);
    return slices;
  }
  void AddTo(std::vector<FetchedSlice>& slices, const v1::FetchTopKResponse& message) {
    ++messages_;
    EXPECT_LE(message.ByteSizeLong(), size_t{2} << 20);
    for (const v1::FetchedSlice& entry : message.slices()) {
      if (slices.empty() || slices.back().complete) slices.emplace_back();
      FetchedSlice& slice = slices.back();
      EXPECT_EQ(entry.slice(), slices.size() - 1);
      slice.blocks.insert(slice.blocks.end(), entry.blocks().begin(), entry.blocks().end());
      for (const v1::MissingRange& range : entry.missing()) {
        EXPECT_EQ(range.slice(), entry.slice());
        slice.missing.emplace_back(range.first_position(), range.length(), range.reason());
      }
      slice.complete = entry.has_record_digest();
      slice.length = entry.length();
      slice.digest = entry.record_digest();
    }
  }

  // Checks that each position of the slice is missing, or has the record in one of the blocks.
  static void ExpectRecords(const FetchedSlice& slice, uint32_t first, const Records& records) {
    ASSERT_TRUE(slice.complete);
    std::map<uint32_t, uint64_t> found;  // by position
    for (const std::string& bytes : slice.blocks) {
      const absl::StatusOr<BlockView> block =
          OpenBlock(std::as_bytes(std::span(bytes)), /*checksums=*/true);
      ASSERT_TRUE(block.ok()) << block.status();
      for (uint32_t i = 0; i < block->header.positions; ++i) {
        const uint32_t position = block->header.first_position + i;
        if (position < first || position >= first + slice.length) continue;
        found[position] = DigestOf(*block, i, 1);
      }
    }
    uint32_t missing = 0;
    for (const auto& [position, length, reason] : slice.missing) {
      for (uint32_t i = 0; i < length; ++i) found.erase(position + i);
      missing += length;
    }
    EXPECT_EQ(found.size() + missing, slice.length);
    uint64_t digest = 0;
    for (const auto& [position, of_position] : found) {
      ASSERT_EQ(of_position, DigestOf(records, position, position)) << position;
      digest += of_position;
    }
    EXPECT_EQ(digest, slice.digest);
  }

  Cache cache_;
  std::shared_ptr<sis::Run> run_ = cache_.CreateRun("r", LosslessConfig(kSlots));
  RecordGenerator generator_{kSlots, 1000, 31};
  int messages_ = 0;
};

TEST_F(FetchTest, UnlessWholeBlocksAreAskedForPart1IsLeftOut) {
  const Records records = generator_.NextRecords(500);
  for (uint32_t version = 0; version < 5; ++version) {
    Append("a", records, 100 * version, 100, version);
  }
  v1::FetchTopKRequest request;
  Add(request, "a", 30, 300);
  const FetchedSlice parts = Do(request).at(0);
  request.set_whole_blocks(true);
  const FetchedSlice whole = Do(request).at(0);
  EXPECT_EQ(parts.digest, whole.digest);
  EXPECT_EQ(parts.length, whole.length);
  ASSERT_EQ(parts.blocks.size(), 4);
  ASSERT_EQ(whole.blocks.size(), 4);
  for (size_t i = 0; i < whole.blocks.size(); ++i) {
    const BlockView block =
        *OpenBlock(std::as_bytes(std::span(whole.blocks[i])), /*checksums=*/true);
    const size_t part2 = BlockLayout(block.header).sampled_log_probs;
    EXPECT_TRUE(parts.blocks[i] ==
                whole.blocks[i].substr(0, sizeof(BlockHeader)) + whole.blocks[i].substr(part2));
  }
}

TEST_F(FetchTest, LongSlicesContinueInTheNextMessage) {
  const Records records = generator_.NextRecords(40000);
  Append("a", records, 0, 40000);
  Append("b", records, 0, 10);
  v1::FetchTopKRequest request;
  request.set_whole_blocks(true);
  Add(request, "b", 0, 0);
  Add(request, "a", 100, 39000);
  Add(request, "a", 39900, 200000);
  Add(request, "b", 0, 0);
  const std::vector<FetchedSlice> slices = Do(request);
  ASSERT_EQ(slices.size(), 4);
  EXPECT_GT(messages_, 1);
  EXPECT_LE(messages_, 3);
  ExpectRecords(slices[0], 0, records);
  ExpectRecords(slices[1], 100, records);
  ExpectRecords(slices[2], 39900, records);
  EXPECT_THAT(slices[2].missing,
              ElementsAre(std::tuple(40000, 199900, v1::MISSING_REASON_NEVER_ARRIVED)));
  ExpectRecords(slices[3], 0, records);
}

TEST_F(FetchTest, ManyShortSlicesShareAMessage) {
  const Records records = generator_.NextRecords(40);
  v1::FetchTopKRequest request;
  for (int i = 0; i < 1500; ++i) {
    const std::string id = absl::StrCat("s", i);
    Append(id, records, 0, 1 + i % 40);
    Add(request, id, 0, 0);
  }
  request.set_whole_blocks(true);
  const std::vector<FetchedSlice> slices = Do(request);
  ASSERT_EQ(slices.size(), 1500);
  EXPECT_EQ(messages_, 2);
  for (int i = 0; i < 1500; ++i) {
    EXPECT_EQ(slices[i].length, 1 + i % 40);
    ExpectRecords(slices[i], 0, records);
  }
}

// Records that are appended between two messages are either sent or missing, and the digest covers
// exactly the records that were sent.
TEST_F(FetchTest, RecordsThatComeMeanwhileAreThereOrMissing) {
  const Records records = generator_.NextRecords(60000);
  Append("a", records, 0, 100);
  Append("a", records, 200, 40000);
  Append("a", records, 40300, 100);
  v1::FetchTopKRequest request;
  request.set_whole_blocks(true);
  Add(request, "a", 0, 50000);
  absl::StatusOr<Fetch> fetch = Fetch::Open(run_, request);
  ASSERT_TRUE(fetch.ok()) << fetch.status();
  v1::FetchTopKResponse message;
  ASSERT_TRUE(fetch->Next(message));
  std::vector<FetchedSlice> slices;
  AddTo(slices, message);
  ASSERT_FALSE(slices.at(0).complete);
  Append("a", records, 100, 100);
  Append("a", records, 40200, 100);
  while (fetch->Next(message)) AddTo(slices, message);
  ASSERT_EQ(slices.size(), 1);
  ExpectRecords(slices[0], 0, records);
  EXPECT_THAT(slices[0].missing,
              ElementsAre(std::tuple(100, 100, v1::MISSING_REASON_NEVER_ARRIVED),
                          std::tuple(40400, 9600, v1::MISSING_REASON_NEVER_ARRIVED)));
}

TEST_F(FetchTest, HoldsNoSequenceLongerThanItsBlocksTake) {
  const auto is_held = [&](const char* id) {
    auto sequence = std::get<std::shared_ptr<Sequence>>(run_->Find({id, 0}));
    return sequence.use_count() > 2;  // the run, and this
  };
  const Records records = generator_.NextRecords(60000);
  v1::FetchTopKRequest request;
  request.set_whole_blocks(true);
  for (const char* id : {"a", "b"}) {
    Append(id, records, 0, 60000);
    Add(request, id, 0, 50000);
  }
  absl::StatusOr<Fetch> fetch = Fetch::Open(run_, request);
  ASSERT_TRUE(fetch.ok()) << fetch.status();
  EXPECT_TRUE(is_held("a") && is_held("b"));
  std::vector<FetchedSlice> slices;
  for (v1::FetchTopKResponse message; fetch->Next(message);) {
    AddTo(slices, message);
    EXPECT_EQ(is_held("a"), !slices[0].complete);
    EXPECT_EQ(is_held("b"), slices.size() < 2 || !slices[1].complete);
  }
  EXPECT_GT(messages_, 2);
}

TEST_F(FetchTest, BadRequestsAreRefusedAndKeepNothing) {
  Append("a", generator_.NextRecords(10), 0, 10);
  const auto refused = [&](const std::string& message, auto change) {
    v1::FetchTopKRequest request;
    Add(request, "a", 0, 0);
    request.set_keep_seconds(5);
    change(request);
    const absl::Status status = Fetch::Open(run_, request).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
    EXPECT_EQ(run_->Describe().kept_sequences, 0) << message;
  };
  refused("slices: none", [](auto& r) { r.clear_slices(); });
  refused("slices[0].sequence.id", [](auto& r) { r.mutable_slices(0)->clear_sequence(); });
  refused("slices[1] of sequence 'b' attempt 0: first_position 4194304 + length 1",
          [](auto& r) { Add(r, "b", 4194304, 1); });
  refused("slices[1]", [](auto& r) { Add(r, "b", UINT32_MAX, UINT32_MAX); });
  for (const double seconds : {-1.0, 3601.0, double{NAN}, HUGE_VAL}) {
    refused(absl::StrCat("keep_seconds: out of range, got ", seconds, "; must be in [0, 3600]"),
            [&](auto& r) { r.set_keep_seconds(seconds); });
  }
  refused("16777220 positions in all", [](auto& r) {
    for (int i = 0; i < 4; ++i) Add(r, "b", 0, 4194304);
    Add(r, "b", 0, 4);
    r.mutable_slices()->DeleteSubrange(0, 1);
  });
}

}  // namespace
}  // namespace sis
