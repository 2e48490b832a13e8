// Where an array lies in a segment, as messages say it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace sis {

// Bytes [offset, offset + size) of a segment.
struct SegmentRange {
  // What stands in a message in its place.
  static constexpr size_t kBytes = 16;

  // From these bytes of a message. InvalidArgument, which names no field,
  // unless it is a part of a segment of so many bytes.
  static absl::StatusOr<SegmentRange> Parse(std::string_view field, uint64_t segment_bytes);
  std::string ToBytes() const;
  // The same test.
  absl::Status Check(uint64_t segment_bytes) const;

  uint64_t offset;
  uint64_t size;
};

}  // namespace sis
