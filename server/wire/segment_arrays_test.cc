// Arrays of messages that name a segment.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "server/shared_memory/shared_segment.h"
#include "server/wire/received_arrays.h"
#include "server/wire/segment_range.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {
namespace {

constexpr uint64_t kBytes = 8192;

class SegmentArraysTest : public testing::Test {
 protected:
  SegmentArraysTest() : segment_(*SharedSegment::Make(kBytes)) {}

  static std::string Part(uint64_t offset, uint64_t size) {
    return SegmentRange{offset, size}.ToBytes();
  }

  // The arrays of `message` as they are after it was received in pieces of 5 bytes.
  template <typename Message>
  ReceivedArrays Receive(const Message& message, Message& received) {
    bytes_ = message.SerializeAsString();
    std::vector<std::string_view> pieces;
    for (size_t i = 0; i < bytes_.size(); i += 5) {
      pieces.push_back(std::string_view(bytes_).substr(i, 5));
    }
    ReceivedArrays arrays;
    ByteBudget budget(INT64_MAX);
    ParsingCharge charge(budget);
    EXPECT_TRUE(
        ReceivedArrays::Parse(ScatteredBytes(pieces), ShapeOf<Message>(), charge, received, arrays)
            .ok());
    arrays.LieIn(segment_);
    return arrays;
  }

  absl::Status CheckLogProbs(const std::string& field) {
    v1::EvaluateRequest request;
    request.mutable_gathered()->set_log_probs(field);
    v1::EvaluateRequest received;
    const ReceivedArrays arrays = Receive(request, received);
    const absl::Status status = arrays.CheckRanges(received);
    const size_t size = arrays.Of(received.gathered().log_probs()).size();
    EXPECT_TRUE(status.ok() || size == 0);
    return status;
  }

  const std::shared_ptr<SharedSegment> segment_;
  std::string bytes_;
};

TEST_F(SegmentArraysTest, AreReadFromTheSegment) {
  const std::vector<float> values = {1, 2, 3, 4, 5};
  segment_->Write(128, values.size() * sizeof(float), values.data());
  v1::EvaluateRequest request;
  request.mutable_gathered()->set_log_probs(Part(128, 20));
  request.mutable_decoupled()->set_current_log_probs(Part(192, 0));
  v1::EvaluateRequest received;
  const ReceivedArrays arrays = Receive(request, received);
  EXPECT_TRUE(arrays.CheckRanges(received).ok());
  const ArrayField array = arrays.Of(received.gathered().log_probs());
  ASSERT_EQ(array.size(), 20);
  std::vector<float> scratch;
  const std::span<const float> read = array.Read<float>(1, 3, scratch);
  EXPECT_EQ(std::vector<float>(read.begin(), read.end()), std::vector<float>({2, 3, 4}));
  // What the client writes later changes nothing about what was read.
  const std::vector<float> other(5, 9);
  segment_->Write(128, other.size() * sizeof(float), other.data());
  EXPECT_EQ(read[0], 2);
  EXPECT_EQ(arrays.Of(received.decoupled().current_log_probs()).size(), 0);
  EXPECT_EQ(arrays.Of(received.mask()).size(), 0);
}

TEST_F(SegmentArraysTest, WhatIsNotAlignedIsCopied) {
  const std::vector<uint16_t> halves = {1, 2, 3, 4, 5};
  for (const uint64_t offset : {64, 66, 67}) {
    segment_->Write(offset, halves.size() * sizeof(uint16_t), halves.data());
    v1::EvaluateRequest request;
    request.mutable_gathered()->set_log_probs(Part(offset, 10));
    v1::EvaluateRequest received;
    const ReceivedArrays arrays = Receive(request, received);
    ASSERT_TRUE(arrays.CheckRanges(received).ok());
    std::vector<uint16_t> scratch;
    const std::span<const uint16_t> read =
        arrays.Of(received.gathered().log_probs()).ReadOnce<uint16_t>(1, 3, scratch);
    EXPECT_EQ(std::vector<uint16_t>(read.begin(), read.end()), std::vector<uint16_t>({2, 3, 4}));
    EXPECT_EQ(read.data() == scratch.data(), offset % 2 != 0) << offset;
  }
}

TEST_F(SegmentArraysTest, OfAMessageWhoseFieldsHoldTheirBytes) {
  segment_->Write(0, 3, "abc");
  v1::EvaluateRequest request;
  request.set_mask(Part(0, 3));
  ReceivedArrays arrays;
  arrays.LieIn(segment_);
  EXPECT_TRUE(arrays.CheckRanges(request).ok());
  std::vector<char> scratch;
  const std::span<const char> read = arrays.Of(request.mask()).Read<char>(0, 3, scratch);
  EXPECT_EQ(std::string(read.begin(), read.end()), "abc");
}

TEST_F(SegmentArraysTest, RangesMustLieInTheSegment) {
  for (const auto& [offset, size] : std::vector<std::pair<uint64_t, uint64_t>>{{0, 0},
                                                                               {0, kBytes},
                                                                               {kBytes, 0},
                                                                               {kBytes - 64, 64},
                                                                               {64, 1},
                                                                               {1, kBytes - 1},
                                                                               {30, 4}}) {
    EXPECT_TRUE(CheckLogProbs(Part(offset, size)).ok()) << offset << ' ' << size;
  }
  const uint64_t top = uint64_t{0} - 64;
  for (const auto& [offset, size] :
       std::vector<std::pair<uint64_t, uint64_t>>{{0, kBytes + 1},
                                                  {kBytes + 64, 0},
                                                  {kBytes - 64, 65},
                                                  {1, kBytes},
                                                  {64, UINT64_MAX},
                                                  {top, 64},
                                                  {top, 128},
                                                  {top, kBytes},
                                                  {uint64_t{1} << 63, uint64_t{1} << 63}}) {
    const absl::Status status = CheckLogProbs(Part(offset, size));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << offset << ' ' << size;
    EXPECT_TRUE(absl::StartsWith(status.message(), "gathered.log_probs: ")) << status;
  }
}

TEST_F(SegmentArraysTest, AFieldMustHoldOffsetAndSize) {
  for (const size_t size : {1, 15, 17, 32, 1000}) {
    const absl::Status status = CheckLogProbs(std::string(size, '\0'));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << size;
  }
}

TEST_F(SegmentArraysTest, FieldsAreNamedByTheirPath) {
  v1::AppendBatch batch;
  batch.add_entries()->mutable_seal();
  batch.add_entries()->mutable_block()->set_top_k_ids(Part(3, kBytes));
  v1::AppendBatch received;
  const ReceivedArrays arrays = Receive(batch, received);
  EXPECT_TRUE(absl::StartsWith(arrays.CheckRanges(received).message(),
                               "entries[1].block.top_k_ids: 8192 bytes at 3, "));
  EXPECT_TRUE(
      absl::StartsWith(arrays.CheckRanges(received.entries(1).block()).message(), "top_k_ids: "));
  EXPECT_TRUE(arrays.CheckRanges(received.entries(0)).ok());
}

}  // namespace
}  // namespace sis
