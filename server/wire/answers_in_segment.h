// The arrays of an answer, in shared memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message.h"
#include "server/wire/received_arrays.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// Where a request wants the arrays of its answer (SegmentRange in the API).
class AnswersInSegment {
 public:
  // What each array begins at a multiple of.
  static constexpr uint64_t kAlignment = 64;

  // `sizes` are those of the arrays, in bytes. InvalidArgument if `arrays`, the request's, lie in
  // no segment, or it hasn't such a range, or that is too small: the message says what is needed.
  static absl::StatusOr<AnswersInSegment> Parse(const v1::SegmentRange& range,
                                                const ReceivedArrays& arrays,
                                                std::span<const uint64_t> sizes);

  // InvalidArgument, naming the field, if an array of the request, which has passed CheckRanges of
  // `arrays`, overlaps the answers.
  absl::Status CheckDisjoint(const google::protobuf::Message& request,
                             const ReceivedArrays& arrays) const;

  // Where the array is that has sizes[index].
  const SegmentRange& part(size_t index) const { return parts_[index]; }
  // Writes bytes of it, which it must have room for.
  void Write(size_t index, uint64_t offset, std::span<const std::byte> bytes) const;
  // Moves so many bytes of it from an offset to one that isn't above it.
  void MoveUp(size_t index, uint64_t offset, uint64_t size, uint64_t to) const;
  // Writes the response's own `bytes` fields there, whose sizes must be those, in the order of
  // their numbers, and puts where they are into the fields.
  void Move(google::protobuf::Message& response) const;

 private:
  AnswersInSegment(std::shared_ptr<SharedSegment> segment, SegmentRange range,
                   std::vector<SegmentRange> parts)
      : segment_(std::move(segment)), range_(range), parts_(std::move(parts)) {}

  std::shared_ptr<SharedSegment> segment_;
  SegmentRange range_;
  std::vector<SegmentRange> parts_;  // in the range
};

}  // namespace sis
