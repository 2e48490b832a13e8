#include "server/tracing/otlp_json.h"

#include <cstddef>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace sis {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kService[] = "sis.v1.RatioService";
constexpr int kKindServer = 2;   // SPAN_KIND_SERVER
constexpr int kStatusError = 2;  // STATUS_CODE_ERROR

Json Text(const char* key, absl::string_view value) {
  return {{"key", key}, {"value", {{"stringValue", std::string(value)}}}};
}

// 64 bits are strings, as in protobuf's JSON.
Json Number(const char* key, int64_t value) {
  return {{"key", key}, {"value", {{"intValue", absl::StrCat(value)}}}};
}

// Of those that the conventions count as the server's fault.
bool IsServersError(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDataLoss:
      return true;
    default:
      return false;
  }
}

Json ToJson(const Span& span, const std::string& span_id) {
  Json attributes = {Text("rpc.system", "grpc"), Text("rpc.service", kService),
                     Text("rpc.method", span.method),
                     Number("rpc.grpc.status_code", static_cast<int64_t>(span.code))};
  if (!span.run_id.empty()) attributes.push_back(Text("sis.run", span.run_id));
  if (span.sequences.has_value()) {
    attributes.push_back(Number("sis.sequences", *span.sequences));
  }
  if (span.positions.has_value()) {
    attributes.push_back(Number("sis.positions", *span.positions));
  }
  Json status = Json::object();
  if (IsServersError(span.code)) status["code"] = kStatusError;
  return {{"traceId", span.parent.trace_id},
          {"spanId", span_id},
          {"parentSpanId", span.parent.parent_id},
          {"name", absl::StrCat(kService, "/", span.method)},
          {"kind", kKindServer},
          {"startTimeUnixNano", absl::StrCat(absl::ToUnixNanos(span.start))},
          {"endTimeUnixNano", absl::StrCat(absl::ToUnixNanos(span.end))},
          {"attributes", std::move(attributes)},
          {"status", std::move(status)}};
}

}  // namespace

std::string OtlpJson(const SpanSource& source, std::span<const Span> spans,
                     std::span<const std::string> span_ids) {
  Json listed = Json::array();
  for (size_t i = 0; i < spans.size(); ++i) listed.push_back(ToJson(spans[i], span_ids[i]));
  Json scope_spans = {{"scope", {{"name", "sis_server"}, {"version", source.version}}},
                      {"spans", std::move(listed)}};
  Json attributes = {Text("service.name", "sis_server"), Text("service.version", source.version),
                     Text("host.name", source.host)};
  Json resource_spans = {{"resource", {{"attributes", std::move(attributes)}}},
                         {"scopeSpans", Json::array({std::move(scope_spans)})}};
  const Json request = {{"resourceSpans", Json::array({std::move(resource_spans)})}};
  // A run id that was cut may end in half a character.
  return request.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace sis
