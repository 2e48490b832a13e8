// Where a batch that lies in a segment is cut, and what its requests say of the arrays.
#include "client/replicas/evaluate_batches.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace sis {
namespace {

// Of the slices, and the used slots of their positions: both begin anywhere.
constexpr std::array<uint32_t, 5> kLengths = {64, 3, 61, 5, 1};
constexpr size_t kPositions = 134;

class EvaluateBatchesTest : public testing::Test {
 protected:
  EvaluateBatchesTest() {
    for (const uint32_t length : kLengths) request_.add_slices()->set_length(length);
    for (size_t i = 0; i <= kPositions; ++i) begins_.push_back(4 * (5 * i + i * i % 7));
    // At the slice that begins at position 128 all arrays are aligned as 0.1.0 wants it.
    const size_t gap = 2624 - begins_[128];
    for (size_t i = 128; i <= kPositions; ++i) begins_[i] += gap;
    memory_.resize(16384);
  }
  // The arrays, from that byte of the segment on.
  std::vector<PositionArray> ArraysFrom(size_t first) {
    const auto part = [&](size_t offset, size_t bytes) {
      return std::as_bytes(std::span(memory_)).subspan(offset, bytes);
    };
    const int form = v1::EvaluateRequest::kGatheredFieldNumber;
    return {
        {form, v1::Gathered::kLogProbsFieldNumber, part(first, begins_.back()), 0, begins_},
        {form, v1::Gathered::kSampledLogProbsFieldNumber, part(first + 4096, 4 * kPositions), 4},
        {0, v1::EvaluateRequest::kMaskFieldNumber, part(first + 8192, kPositions), 1}};
  }
  // How many slices are in each batch, if as few as possible are to be in one.
  std::vector<int> Cut(EvaluateBatches& batches) {
    std::vector<size_t> slices(kLengths.size());
    std::iota(slices.begin(), slices.end(), 0);
    batches.Cut(slices, 1, /*lease_id=*/0);
    std::vector<int> sizes;
    for (size_t i = 0; i < batches.size(); ++i) sizes.push_back(batches.Message(i).slices_size());
    return sizes;
  }
  static std::pair<uint64_t, uint64_t> Place(const std::string& field) {
    std::pair<uint64_t, uint64_t> place;
    EXPECT_EQ(field.size(), 16);
    std::memcpy(&place.first, field.data(), 8);
    std::memcpy(&place.second, field.data() + 8, 8);
    return place;
  }

  v1::EvaluateRequest request_;
  std::vector<size_t> begins_;
  std::vector<std::byte> memory_;
  MappedSegments segments_;
};

TEST_F(EvaluateBatchesTest, EachBatchNamesItsPartsWhereTheyLie) {
  segments_.Add(memory_, "segment", 1);
  for (const size_t first : {0, 4, 5}) {
    EvaluateBatches batches(request_, ArraysFrom(first), segments_);
    ASSERT_TRUE(batches.fit());
    ASSERT_EQ(Cut(batches), std::vector<int>(kLengths.size(), 1));
    size_t position = 0;
    for (size_t i = 0; i < batches.size(); ++i) {
      const v1::EvaluateRequest message = batches.Message(i);
      EXPECT_EQ(message.segment(), "segment");
      const size_t end = position + kLengths[i];
      EXPECT_EQ(Place(message.gathered().log_probs()),
                std::pair(first + begins_[position], begins_[end] - begins_[position]));
      EXPECT_EQ(Place(message.gathered().sampled_log_probs()),
                std::pair(first + 4096 + 4 * position, size_t{4} * kLengths[i]));
      EXPECT_EQ(Place(message.mask()), std::pair(first + 8192 + position, size_t{kLengths[i]}));
      position = end;
    }
  }
}

TEST_F(EvaluateBatchesTest, AServerOf010HasThemAligned) {
  segments_.Add(memory_, "segment", 64);
  {
    EvaluateBatches batches(request_, ArraysFrom(0), segments_);
    EXPECT_EQ(Cut(batches), (std::vector<int>{3, 2}));
    for (size_t i = 0; i < batches.size(); ++i) {
      EXPECT_EQ(batches.Message(i).segment(), "segment");
    }
    EXPECT_EQ(Place(batches.Message(1).gathered().log_probs()).first, 2624);
  }
  // Over the wire, and cut anywhere.
  EvaluateBatches batches(request_, ArraysFrom(4), segments_);
  EXPECT_EQ(Cut(batches), std::vector<int>(kLengths.size(), 1));
  for (size_t i = 0; i < batches.size(); ++i) {
    EXPECT_TRUE(batches.Message(i).segment().empty());
    EXPECT_EQ(batches.Message(i).mask().size(), kLengths[i]);
  }
}

}  // namespace
}  // namespace sis
