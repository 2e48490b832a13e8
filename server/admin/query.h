// What requests take from the query of a URL, as in run_id=r&draw=5.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// With every %XX as the byte that it stands for; what only begins so is left as it is.
std::string PercentDecoded(absl::string_view text);

// The value of a name in a query, decoded; empty if it isn't there.
std::string QueryValue(absl::string_view query, absl::string_view name);

template <typename Integer>
absl::Status ReadInteger(absl::string_view query, absl::string_view name, Integer& value) {
  const std::string text = QueryValue(query, name);
  if (text.empty() || absl::SimpleAtoi(text, &value)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ": '", text, "' is not a number"));
}

// By its name in the API, as in order=WORST_FIRST.
template <typename Request>
absl::Status ReadOrder(absl::string_view query, Request& request) {
  const std::string name = QueryValue(query, "order");
  auto order = request.order();
  if (!name.empty() && !v1::RunOrder_Parse(name, &order)) {
    return absl::InvalidArgumentError(absl::StrCat("order: '", name, "' is none"));
  }
  request.set_order(order);
  return absl::OkStatus();
}

// Fills in those fields that the request has of run_id, draw, sequence or after with their attempt,
// limit, containing, order and offset. InvalidArgument for a value that is no number, or no name of
// an order.
template <typename Request>
absl::Status ReadQuery(absl::string_view query, Request& request) {
  const std::string run_id = QueryValue(query, "run_id");
  uint64_t draw = 0;
  uint32_t attempt = 0, limit = 0, offset = 0;
  absl::Status status;
  if constexpr (requires { request.set_run_id(run_id); }) request.set_run_id(run_id);
  if constexpr (requires { request.mutable_run(); }) request.mutable_run()->set_run_id(run_id);
  if constexpr (requires { request.set_draw(draw); }) {
    status = ReadInteger(query, "draw", draw);
    request.set_draw(draw);
  }
  if constexpr (requires { request.mutable_sequence(); }) {
    status = ReadInteger(query, "attempt", attempt);
    request.mutable_sequence()->set_id(QueryValue(query, "sequence"));
    request.mutable_sequence()->set_attempt(attempt);
  }
  if constexpr (requires { request.set_limit(limit); }) {
    status.Update(ReadInteger(query, "limit", limit));
    request.set_limit(limit);
  }
  if constexpr (requires { request.set_containing(run_id); }) {
    request.set_containing(QueryValue(query, "containing"));
  }
  if constexpr (requires { request.set_order(request.order()); }) {
    status.Update(ReadOrder(query, request));
  }
  if constexpr (requires { request.set_offset(offset); }) {
    status.Update(ReadInteger(query, "offset", offset));
    request.set_offset(offset);
  }
  if constexpr (requires { request.mutable_after(); }) {
    status.Update(ReadInteger(query, "attempt", attempt));
    if (const std::string after = QueryValue(query, "after"); !after.empty()) {
      request.mutable_after()->set_id(after);
      request.mutable_after()->set_attempt(attempt);
    }
  }
  return status;
}

}  // namespace sis
