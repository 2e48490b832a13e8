// What the server did for one request of a traced call.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/tracing/traceparent.h"

namespace sis {

struct Span {
  TraceParent parent;
  std::string method;  // of sis.v1.RatioService
  absl::Time start;
  absl::Time end;
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string run_id;                // empty: not known
  std::optional<int64_t> sequences;  // or slices of them
  std::optional<int64_t> positions;
};

}  // namespace sis
