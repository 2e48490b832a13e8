#include "server/wire/segment_range.h"

#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace sis {

static_assert(std::endian::native == std::endian::little, "messages are little-endian");

absl::Status SegmentRange::Check(uint64_t segment_bytes) const {
  if (offset > segment_bytes || size > segment_bytes - offset) {
    return absl::InvalidArgumentError(
        absl::StrCat(size, " bytes at ", offset, ", beyond the segment's ", segment_bytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<SegmentRange> SegmentRange::Parse(std::string_view field, uint64_t segment_bytes) {
  SegmentRange part{};
  static_assert(kBytes == sizeof(part.offset) + sizeof(part.size));
  if (field.size() != kBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("not the ", kBytes, " bytes of an offset and a size in the segment"));
  }
  std::memcpy(&part.offset, field.data(), sizeof(part.offset));
  std::memcpy(&part.size, field.data() + sizeof(part.offset), sizeof(part.size));
  if (absl::Status status = part.Check(segment_bytes); !status.ok()) return status;
  return part;
}

std::string SegmentRange::ToBytes() const {
  std::string bytes(reinterpret_cast<const char*>(&offset), sizeof(offset));
  return bytes.append(reinterpret_cast<const char*>(&size), sizeof(size));
}

}  // namespace sis
