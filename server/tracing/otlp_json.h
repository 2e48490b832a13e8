// Spans in OTLP/JSON (https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/tracing/traceparent.h"

namespace sis {

// What the server did for one request of a traced call.
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

// Who made them.
struct SpanSource {
  std::string version;
  std::string host;
};

// An ExportTraceServiceRequest, without a line break. Attributes and names are those of
// OpenTelemetry's semantic conventions for RPC. `span_ids`: 16 hexadecimal digits for each.
std::string OtlpJson(const SpanSource& source, std::span<const Span> spans,
                     std::span<const std::string> span_ids);

}  // namespace sis
