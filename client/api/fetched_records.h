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
#include "client/types/fetched_message.h"
#include "client/types/types.h"

namespace sis {

// Takes the messages of one stream, in order. All errors are Internal: the stream is not what the
// server promises.
//
// A stream carries the rows, slice by slice and in position order: each array is copied once, to
// its place in memory of the records' own.
class RecordReader {
 public:
  // The request says which arrays are wanted.
  explicit RecordReader(const v1::FetchTopKRequest& request);
  absl::Status Add(FetchedMessage message);
  // The records, when the stream has ended.
  absl::StatusOr<TopKRecords> Finish() &&;

 private:
  absl::Status AddHeader(const v1::FetchTopKHeader& header);
  absl::Status Copy(FetchedChunk chunk);
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

  std::array<bool, FetchedChunk::kArrays> wanted_ = {};
  bool has_header_ = false;
  TopKRecords records_;
  size_t positions_ = 0;
  // Where each array begins.
  std::array<std::byte*, FetchedChunk::kArrays> arrays_ = {};
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
