// The arrays of a response, in shared memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message.h"
#include "server/wire/received_arrays.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// Where a request wants the arrays of its response (SegmentRange in the API).
class AnswersInSegment {
 public:
  // `sizes` are those of the arrays, in bytes. InvalidArgument if `arrays`, the request's, lie in
  // no segment, or it hasn't such a range, or that is too small: the message says what is needed.
  static absl::StatusOr<AnswersInSegment> Parse(const v1::SegmentRange& range,
                                                const ReceivedArrays& arrays,
                                                std::span<const uint64_t> sizes);

  // InvalidArgument, naming the field, if an array of the request, which has passed CheckRanges of
  // `arrays`, overlaps the answers.
  absl::Status CheckDisjoint(const google::protobuf::Message& request,
                             const ReceivedArrays& arrays) const;

  // Writes the response's own `bytes` fields there, in the order of their numbers, and where they
  // are into the fields.
  void Move(google::protobuf::Message& response) const;

 private:
  AnswersInSegment(std::shared_ptr<SharedSegment> segment, SegmentPart part)
      : segment_(std::move(segment)), part_(part) {}

  std::shared_ptr<SharedSegment> segment_;
  SegmentPart part_;
};

}  // namespace sis
