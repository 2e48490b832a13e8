#include "server/append/locate_array.h"

#include "absl/strings/str_cat.h"
#include "server/wire/segment_range.h"

namespace sis {

absl::StatusOr<ArrayField> LocateArray(absl::string_view name, const ArrayField& field,
                                       const SharedSegment* segment) {
  if (segment == nullptr || field.size() == 0) return field;
  const absl::StatusOr<SegmentRange> part = RangeIn(*segment, field);
  if (part.ok()) return ArrayField(*segment, part->offset, part->size);
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", part.status().message()));
}

}  // namespace sis
