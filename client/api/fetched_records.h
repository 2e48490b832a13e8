// The records of a FetchTopK, from its messages.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/shared_memory/segment_memory.h"
#include "client/types/fetched_message.h"
#include "client/types/types.h"

namespace sis {

// Takes the messages of one stream, in order. All errors are Internal: the stream is not what the
// server promises.
//
// A stream without a range of a segment carries the rows, slice by slice and in position order:
// each array is copied once, to its place in memory of the records' own. With a range it says where
// in there the rows were put: they stay there, and the records keep what they need of the range.
class RecordReader {
 public:
  // The request says which arrays are wanted. The range is given back when the records go, or
  // abandoned if the stream is wrong.
  RecordReader(const v1::FetchTopKRequest& request, std::shared_ptr<SegmentAllocation> range);
  absl::Status Add(FetchedMessage message);
  // The records, when the stream has ended.
  absl::StatusOr<TopKRecords> Finish() &&;

 private:
  absl::Status AddHeader(const v1::FetchTopKHeader& header);
  absl::Status Copy(FetchedChunk chunk);
  absl::Status Locate(const FetchedChunk& chunk);
  absl::Status LocateArray(const FetchedChunk& chunk, FetchedChunk::Array array);
  // Where in the range an array lies, as the chunk's field says.
  absl::StatusOr<std::span<std::byte>> Located(absl::string_view name, const FetchedChunk& chunk,
                                               const FetchedChunk::ByteRange& field);
  // Sees how many slots a ragged chunk's positions use, and keeps it till the end.
  absl::Status Keep(FetchedChunk chunk);
  // Copies the kept ones, now that it is known how many slots there are.
  void CopyKept();
  // Goes on to the slice that the next row belongs to, if there is one.
  void SkipFullSlices();
  bool ragged() const { return wanted_[FetchedChunk::kTopKCounts]; }
  // Of one position in that array; 0 if it is not wanted, or ragged.
  size_t RowBytes(FetchedChunk::Array array) const;
  // Of all of it.
  size_t Bytes(FetchedChunk::Array array) const;
  // In the order of the arrays, uninitialised.
  void Allocate();
  // Once it is known where they begin.
  void SetArrays(std::shared_ptr<const void> memory);

  const std::shared_ptr<SegmentAllocation> range_;
  std::array<bool, FetchedChunk::kArrays> wanted_ = {};
  bool has_header_ = false;
  TopKRecords records_;
  size_t positions_ = 0;
  // Where each array begins.
  std::array<std::byte*, FetchedChunk::kArrays> arrays_ = {};
  bool located_ = false;
  size_t used_ = 0;  // of the range, in bytes
  // If ragged: the chunks, and the used slots of all.
  std::vector<FetchedChunk> kept_;
  size_t slots_ = 0;
  // How many rows are copied, and where the next belongs; before SkipFullSlices it may be one of a
  // later slice.
  size_t filled_ = 0;
  size_t slice_ = 0;
  size_t row_ = 0;
};

}  // namespace sis
