// Where the array of an entry's field lies.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/shared_memory/shared_segment.h"
#include "server/wire/received_arrays.h"

namespace sis {

// In the message if `segment` is null, else in it, where the field says. InvalidArgument begins
// with `name` unless that is a range in it.
absl::StatusOr<ArrayField> LocateArray(absl::string_view name, const ArrayField& field,
                                       const SharedSegment* segment);

}  // namespace sis
