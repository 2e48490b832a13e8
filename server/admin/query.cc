#include "server/admin/query.h"

#include <civetweb.h>

#include <cstdint>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace sis {
namespace {

template <typename Integer>
absl::Status ReadInteger(absl::string_view query, const std::string& name, Integer& value) {
  const std::string text = QueryValue(query, name);
  if (text.empty() || absl::SimpleAtoi(text, &value)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ": '", text, "' is not a number"));
}

template <typename Request>
absl::Status ReadRun(absl::string_view query, Request& request) {
  request.mutable_run()->set_run_id(QueryValue(query, "run_id"));
  return absl::OkStatus();
}

}  // namespace

std::string QueryValue(absl::string_view query, const std::string& name) {
  // Decoding makes nothing longer.
  std::string value(query.size() + 1, '\0');
  const int size = mg_get_var(query.data(), query.size(), name.c_str(), value.data(), value.size());
  value.resize(size < 0 ? 0 : size);
  return value;
}

absl::Status ReadQuery(absl::string_view, v1::ListRunsRequest&) { return absl::OkStatus(); }
absl::Status ReadQuery(absl::string_view, v1::GetServerRequest&) { return absl::OkStatus(); }
absl::Status ReadQuery(absl::string_view query, v1::GetRunRequest& request) {
  request.set_run_id(QueryValue(query, "run_id"));
  return absl::OkStatus();
}
absl::Status ReadQuery(absl::string_view query, v1::ListStepsRequest& request) {
  return ReadRun(query, request);
}
absl::Status ReadQuery(absl::string_view query, v1::ListSequencesRequest& request) {
  uint32_t attempt = 0, limit = 0;
  absl::Status status = ReadInteger(query, "attempt", attempt);
  status.Update(ReadInteger(query, "limit", limit));
  if (!status.ok()) return status;
  request.set_limit(limit);
  if (const std::string after = QueryValue(query, "after"); !after.empty()) {
    request.mutable_after()->set_id(after);
    request.mutable_after()->set_attempt(attempt);
  }
  return ReadRun(query, request);
}
absl::Status ReadQuery(absl::string_view query, v1::InspectRunRequest& request) {
  return ReadRun(query, request);
}
absl::Status ReadQuery(absl::string_view query, v1::GetStepRequest& request) {
  uint64_t draw = 0;
  if (absl::Status status = ReadInteger(query, "draw", draw); !status.ok()) return status;
  request.set_draw(draw);
  return ReadRun(query, request);
}
absl::Status ReadQuery(absl::string_view query, v1::InspectSequenceRequest& request) {
  uint32_t attempt = 0;
  if (absl::Status status = ReadInteger(query, "attempt", attempt); !status.ok()) return status;
  request.mutable_sequence()->set_id(QueryValue(query, "sequence"));
  request.mutable_sequence()->set_attempt(attempt);
  return ReadRun(query, request);
}

}  // namespace sis
