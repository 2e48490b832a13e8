// What a stream of records may say, above all of records that stay in a segment.
#include "client/api/fetched_records.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace sis {
namespace {

constexpr size_t kBytes = 4096;
// Where the range begins that the server may write to.
constexpr uint64_t kBegin = 128;
constexpr uint32_t kPositions = 20;
constexpr uint32_t kSlots = 3;

std::string Part(uint64_t offset, uint64_t size) {
  std::string bytes(reinterpret_cast<const char*>(&offset), sizeof(offset));
  return bytes.append(reinterpret_cast<const char*>(&size), sizeof(size));
}

class LocatedRecordsTest : public testing::Test {
 protected:
  LocatedRecordsTest() {
    void* const memory =
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(memory, MAP_FAILED);
    memory_ = std::make_shared<SegmentMemory>(std::span(static_cast<std::byte*>(memory), kBytes));
    before_ = memory_->Take(kBegin);
    header_.set_top_k(kSlots);
    header_.add_slices()->set_length(kPositions - 1);
    header_.add_slices()->set_length(1);
    chunk_.set_length(kPositions);
    chunk_.set_sampled_ids(Part(128, 80));
    chunk_.set_sampled_log_probs(Part(256, 80));
    chunk_.set_top_k_ids(Part(384, 240));
    chunk_.set_top_k_log_probs(Part(640, 240));
  }

  // What comes of these messages in a range that ends with the array that is last.
  absl::StatusOr<TopKRecords> Locate(std::vector<FetchedMessage> messages) {
    std::shared_ptr<SegmentAllocation> range = memory_->TakeLargest();
    range->Shrink(640 + 240 - kBegin);
    RecordReader locator(request_, std::move(range));
    for (FetchedMessage& message : messages) {
      if (absl::Status status = locator.Add(std::move(message)); !status.ok()) return status;
    }
    return std::move(locator).Finish();
  }

  std::shared_ptr<SegmentMemory> memory_;
  std::unique_ptr<SegmentAllocation> before_;
  v1::FetchTopKRequest request_;
  v1::FetchTopKHeader header_;
  v1::FetchTopKChunk chunk_;
};

TEST_F(LocatedRecordsTest, ArraysAreWhereTheServerSays) {
  const auto records = Locate({header_, FetchedChunk(chunk_)});
  ASSERT_TRUE(records.ok()) << records.status();
  const auto offset = [&](const void* first) {
    return static_cast<const std::byte*>(first) - memory_->bytes().data();
  };
  EXPECT_EQ(offset(records->sampled_ids.data()), 128);
  EXPECT_EQ(offset(records->sampled_log_probs.data()), 256);
  EXPECT_EQ(offset(records->ids.data()), 384);
  EXPECT_EQ(offset(records->log_probs.data()), 640);
  EXPECT_EQ(records->positions(), kPositions);
  EXPECT_EQ(records->sampled_ids.size(), kPositions);
  EXPECT_EQ(records->log_probs.size(), kPositions * kSlots);
}

TEST_F(LocatedRecordsTest, NotWhereItMayNotWrite) {
  const std::vector<std::function<void(v1::FetchTopKChunk&)>> wrong = {
      [](auto& chunk) { chunk.set_sampled_ids(Part(64, 80)); },
      [](auto& chunk) { chunk.set_sampled_ids(Part(0, 80)); },
      [](auto& chunk) { chunk.set_top_k_log_probs(Part(704, 240)); },
      [](auto& chunk) { chunk.set_top_k_log_probs(Part(kBytes, 240)); },
      [](auto& chunk) { chunk.set_top_k_log_probs(Part(UINT64_MAX - 63, 240)); },
      [](auto& chunk) { chunk.set_top_k_ids(Part(400, 240)); },
      [](auto& chunk) { chunk.set_top_k_ids(Part(384, 236)); },
      [](auto& chunk) { chunk.set_top_k_ids(std::string(240, '\0')); },
      [](auto& chunk) { chunk.clear_sampled_log_probs(); },
      [](auto& chunk) { chunk.set_length(kPositions - 1); },
  };
  for (size_t i = 0; i < wrong.size(); ++i) {
    v1::FetchTopKChunk chunk = chunk_;
    wrong[i](chunk);
    EXPECT_EQ(Locate({header_, FetchedChunk(chunk)}).status().code(), absl::StatusCode::kInternal)
        << "chunk " << i;
  }
  const FetchedChunk chunk(chunk_);
  const std::vector<std::vector<FetchedMessage>> streams = {
      {}, {header_}, {chunk}, {header_, chunk, chunk}, {header_, header_, chunk}};
  for (size_t i = 0; i < streams.size(); ++i) {
    EXPECT_EQ(Locate(streams[i]).status().code(), absl::StatusCode::kInternal) << "stream " << i;
  }
}

TEST(CopiedRecordsTest, ChunksMaySpanSlices) {
  v1::FetchTopKRequest request;
  request.add_arrays(v1::SAMPLED_IDS);
  v1::FetchTopKHeader header;
  for (const auto& [first, length] : {std::pair(5, 2), {0, 0}, {3, 3}, {9, 0}}) {
    v1::Slice& slice = *header.add_slices();
    slice.set_first_position(first);
    slice.set_length(length);
  }
  const auto chunk = [](uint32_t slice, uint32_t first, uint32_t length, char fill) {
    v1::FetchTopKChunk chunk;
    chunk.set_slice(slice);
    chunk.set_first_position(first);
    chunk.set_length(length);
    chunk.set_sampled_ids(std::string(4 * length, fill));
    return FetchedChunk(chunk);
  };
  {
    RecordReader copier(request, nullptr);
    ASSERT_TRUE(copier.Add(header).ok());
    ASSERT_TRUE(copier.Add(chunk(0, 5, 1, 1)).ok());
    ASSERT_TRUE(copier.Add(chunk(0, 6, 3, 2)).ok());
    ASSERT_TRUE(copier.Add(chunk(2, 5, 1, 3)).ok());
    const auto records = std::move(copier).Finish();
    ASSERT_TRUE(records.ok()) << records.status();
    const std::vector<int32_t> expected = {0x01010101, 0x02020202, 0x02020202, 0x02020202,
                                           0x03030303};
    EXPECT_TRUE(std::ranges::equal(records->sampled_ids, expected));
  }
  for (const FetchedChunk& wrong : {chunk(0, 5, 6, 1), chunk(0, 6, 1, 1), chunk(2, 3, 1, 1)}) {
    RecordReader copier(request, nullptr);
    ASSERT_TRUE(copier.Add(header).ok());
    EXPECT_EQ(copier.Add(wrong).code(), absl::StatusCode::kInternal);
  }
  for (const FetchedChunk& wrong : {chunk(2, 4, 1, 1), chunk(2, 5, 2, 1), chunk(1, 0, 1, 1)}) {
    RecordReader copier(request, nullptr);
    ASSERT_TRUE(copier.Add(header).ok());
    ASSERT_TRUE(copier.Add(chunk(0, 5, 4, 1)).ok());
    EXPECT_EQ(copier.Add(wrong).code(), absl::StatusCode::kInternal);
  }
}

TEST(CopiedRecordsTest, WhatIsMissingLiesInASlice) {
  const auto add = [](uint32_t slice, uint32_t first_position, uint32_t length) {
    v1::FetchTopKHeader header;
    for (const auto& [first, count] : {std::pair(5, 2), {0, 0}}) {
      header.add_slices()->set_first_position(first);
      header.mutable_slices()->rbegin()->set_length(count);
    }
    v1::MissingRange& gap = *header.add_missing();
    gap.set_slice(slice);
    gap.set_first_position(first_position);
    gap.set_length(length);
    return RecordReader({}, nullptr).Add(header).code();
  };
  EXPECT_EQ(add(0, 5, 2), absl::StatusCode::kOk);
  EXPECT_EQ(add(0, 6, 1), absl::StatusCode::kOk);
  EXPECT_EQ(add(1, 0, 0), absl::StatusCode::kOk) << "a lost sequence";
  for (const auto& [slice, first_position, length] :
       {std::tuple(0, 4, 1), {0, 6, 2}, {0, 6, -1}, {1, 0, 1}, {2, 5, 1}}) {
    EXPECT_EQ(add(slice, first_position, length), absl::StatusCode::kInternal)
        << slice << " " << first_position << " " << length;
  }
}

TEST(CopiedRecordsTest, ArraysHoldTheRowsOfTheirChunk) {
  v1::FetchTopKRequest request;
  request.add_arrays(v1::SAMPLED_IDS);
  v1::FetchTopKHeader header;
  header.add_slices()->set_length(2);
  for (const size_t bytes : {4, 8, 12}) {
    v1::FetchTopKChunk chunk;
    chunk.set_length(2);
    chunk.set_sampled_ids(std::string(bytes, '\0'));
    RecordReader copier(request, nullptr);
    ASSERT_TRUE(copier.Add(header).ok());
    EXPECT_EQ(copier.Add(FetchedChunk(chunk)).ok(), bytes == 8) << bytes;
  }
}

}  // namespace
}  // namespace sis
