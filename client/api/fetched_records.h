// The records of a FetchTopK, from its messages.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/shared_memory/segment_memory.h"
#include "client/types/fetched_message.h"
#include "client/types/types.h"

namespace sis {

// Takes the messages of one stream, in order. All errors are Internal: the stream is not what the
// server promises.
class RecordReader {
 public:
  virtual ~RecordReader() = default;
  absl::Status Add(FetchedMessage message);
  // The records, when the stream has ended.
  absl::StatusOr<TopKRecords> Finish() &&;

 protected:
  // By its FetchedChunk::Array.
  using Arrays = std::array<const std::byte*, FetchedChunk::kArrays>;

  // Knows which arrays are wanted.
  explicit RecordReader(const v1::FetchTopKRequest& request);

  bool Wants(FetchedChunk::Array array) const { return wanted_[array]; }
  // After the header.
  virtual absl::Status AddChunk(const FetchedChunk& chunk) = 0;
  // Whether all rows are there.
  virtual bool Complete() const = 0;

  const TopKRecords& records() const { return records_; }
  size_t positions() const { return positions_; }
  // Of one position in that array; 0 if it is not wanted.
  size_t RowBytes(FetchedChunk::Array array) const;
  // Where the arrays begin, and what they lie in.
  void SetArrays(const Arrays& arrays, std::shared_ptr<const void> memory);

 private:
  virtual void Begin() {}
  void AddHeader(const v1::FetchTopKHeader& header);

  std::array<bool, FetchedChunk::kArrays> wanted_ = {};
  bool has_header_ = false;
  TopKRecords records_;
  size_t positions_ = 0;
};

// Of a stream that carries the rows, slice by slice and in position order: each array is copied
// once, to its place in memory of the records' own.
class RecordCopier final : public RecordReader {
 public:
  explicit RecordCopier(const v1::FetchTopKRequest& request) : RecordReader(request) {}

 private:
  void Begin() override;
  absl::Status AddChunk(const FetchedChunk& chunk) override;
  bool Complete() const override { return filled_ == positions(); }
  // Goes on to the slice that the next row belongs to, if there is one.
  void SkipFullSlices();

  std::array<std::byte*, FetchedChunk::kArrays> arrays_ = {};
  size_t filled_ = 0;
  // Where the next row belongs; before SkipFullSlices it may be one of a later slice.
  size_t slice_ = 0;
  size_t row_ = 0;
};

// Of a stream that says where in a range of a segment the rows were put: they stay there, and the
// records keep what they need of the range.
class RecordLocator final : public RecordReader {
 public:
  // Given back when the records go, or abandoned if the stream is wrong.
  RecordLocator(const v1::FetchTopKRequest& request, std::shared_ptr<SegmentAllocation> range)
      : RecordReader(request), range_(std::move(range)) {}

 private:
  absl::Status AddChunk(const FetchedChunk& chunk) override;
  bool Complete() const override { return located_; }

  const std::shared_ptr<SegmentAllocation> range_;
  bool located_ = false;
};

}  // namespace sis
