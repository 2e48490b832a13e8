// Spans in OTLP/JSON (https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding).
#pragma once

#include <span>
#include <string>

#include "server/tracing/span.h"

namespace sis {

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
