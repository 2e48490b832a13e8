// What a stream of records may say.
#include "client/api/fetched_records.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace sis {
namespace {

TEST(RecordReaderTest, ChunksMaySpanSlices) {
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
    RecordReader copier(request);
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
    RecordReader copier(request);
    ASSERT_TRUE(copier.Add(header).ok());
    EXPECT_EQ(copier.Add(wrong).code(), absl::StatusCode::kInternal);
  }
  for (const FetchedChunk& wrong : {chunk(2, 4, 1, 1), chunk(2, 5, 2, 1), chunk(1, 0, 1, 1)}) {
    RecordReader copier(request);
    ASSERT_TRUE(copier.Add(header).ok());
    ASSERT_TRUE(copier.Add(chunk(0, 5, 4, 1)).ok());
    EXPECT_EQ(copier.Add(wrong).code(), absl::StatusCode::kInternal);
  }
}

TEST(RecordReaderTest, WhatIsMissingLiesInASlice) {
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
    return RecordReader({}).Add(header).code();
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

TEST(RecordReaderTest, ArraysHoldTheRowsOfTheirChunk) {
  v1::FetchTopKRequest request;
  request.add_arrays(v1::SAMPLED_IDS);
  v1::FetchTopKHeader header;
  header.add_slices()->set_length(2);
  for (const size_t bytes : {4, 8, 12}) {
    v1::FetchTopKChunk chunk;
    chunk.set_length(2);
    chunk.set_sampled_ids(std::string(bytes, '\0'));
    RecordReader copier(request);
    ASSERT_TRUE(copier.Add(header).ok());
    EXPECT_EQ(copier.Add(FetchedChunk(chunk)).ok(), bytes == 8) << bytes;
  }
}

}  // namespace
}  // namespace sis
