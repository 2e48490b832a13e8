// The trace that a caller belongs to, as W3C Trace Context's header `traceparent` tells it
// (https://www.w3.org/TR/trace-context/).
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace sis {

struct TraceParent {
  std::string trace_id;   // 32 lowercase hexadecimal digits, not all 0
  std::string parent_id;  // 16 of them: the caller's span
  bool sampled = false;
};

// Nothing if the header is not valid. Of a version after 00 what that one has in common with it.
std::optional<TraceParent> ParseTraceParent(absl::string_view header);

}  // namespace sis
