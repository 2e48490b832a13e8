// Parameters of an algorithm, and their ranges.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace sis {

// A member of a rule, which must outlive this object.
struct Parameter {
  std::string_view name;  // of the field in the rule's message
  float* value;
  // Both bounds are valid values.
  float low;
  float high;
};

// Returns InvalidArgument, with the parameter's name and value, unless low <= value <= high. NaN is
// out of range.
inline absl::Status CheckRange(absl::string_view name, float value, float low, float high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": ", value, ", must be in [", low, ", ", high, "]"));
}

// The maximum of a parameter without a bound of its own. Every ratio is below it.
inline constexpr float kNoUpperBound = 1e38f;

}  // namespace sis
