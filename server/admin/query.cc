#include "server/admin/query.h"

#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace sis {
namespace {

template <typename Integer>
absl::Status ReadInteger(absl::string_view query, absl::string_view name, Integer& value) {
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

std::string PercentDecoded(absl::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_code = text[i] == '%' && i + 2 < text.size() &&
                         absl::ascii_isxdigit(text[i + 1]) && absl::ascii_isxdigit(text[i + 2]);
    decoded += is_code ? absl::HexStringToBytes(text.substr(i + 1, 2)) : std::string(1, text[i]);
    if (is_code) i += 2;
  }
  return decoded;
}

std::string QueryValue(absl::string_view query, absl::string_view name) {
  for (const absl::string_view part : absl::StrSplit(query, '&')) {
    const std::pair<absl::string_view, absl::string_view> name_and_value =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    if (name_and_value.first != name) continue;
    return PercentDecoded(absl::StrReplaceAll(name_and_value.second, {{"+", " "}}));
  }
  return "";
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
