#include "server/admin/api.h"

#include <google/protobuf/util/json_util.h>
#include <grpc/support/time.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/admin/http_server.h"

namespace sis {
namespace {

using Stub = v1::RatioService::StubInterface;

// More than any of these calls takes.
constexpr int kDeadlineSeconds = 10;

template <typename Integer>
absl::Status ReadInteger(absl::string_view query, const std::string& name, Integer& value) {
  const std::string text = QueryValue(query, name);
  if (text.empty() || absl::SimpleAtoi(text, &value)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ": '", text, "' is not a number"));
}

// Fills in what a request takes from a query.
absl::Status Read(absl::string_view, v1::ListRunsRequest&) { return absl::OkStatus(); }
absl::Status Read(absl::string_view, v1::GetServerRequest&) { return absl::OkStatus(); }
absl::Status Read(absl::string_view query, v1::GetRunRequest& request) {
  request.set_run_id(QueryValue(query, "run_id"));
  return absl::OkStatus();
}
template <typename Request>
absl::Status ReadRun(absl::string_view query, Request& request) {
  request.mutable_run()->set_run_id(QueryValue(query, "run_id"));
  return absl::OkStatus();
}
absl::Status Read(absl::string_view query, v1::ListStepsRequest& request) {
  return ReadRun(query, request);
}
absl::Status Read(absl::string_view query, v1::InspectRunRequest& request) {
  return ReadRun(query, request);
}
absl::Status Read(absl::string_view query, v1::GetStepRequest& request) {
  uint64_t draw = 0;
  if (absl::Status status = ReadInteger(query, "draw", draw); !status.ok()) return status;
  request.set_draw(draw);
  return ReadRun(query, request);
}
absl::Status Read(absl::string_view query, v1::InspectSequenceRequest& request) {
  uint32_t attempt = 0;
  if (absl::Status status = ReadInteger(query, "attempt", attempt); !status.ok()) return status;
  request.mutable_sequence()->set_id(QueryValue(query, "sequence"));
  request.mutable_sequence()->set_attempt(attempt);
  return ReadRun(query, request);
}

absl::StatusOr<std::string> ToJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (!status.ok()) return absl::InternalError(std::string(status.message()));
  return json;
}

template <typename Request, typename Response,
          grpc::Status (Stub::*kMethod)(grpc::ClientContext*, const Request&, Response*)>
absl::StatusOr<std::string> Call(Stub& service, absl::string_view query,
                                 const std::string& authorization) {
  Request request;
  if (absl::Status status = Read(query, request); !status.ok()) return status;
  grpc::ClientContext context;
  // By a clock that nobody sets: by the other one it would have passed once somebody did.
  context.set_deadline(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                    gpr_time_from_seconds(kDeadlineSeconds, GPR_TIMESPAN)));
  if (!authorization.empty()) context.AddMetadata("authorization", authorization);
  Response response;
  const grpc::Status status = (service.*kMethod)(&context, request, &response);
  if (!status.ok()) {
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  }
  return ToJson(response);
}

struct Method {
  absl::string_view name;
  absl::StatusOr<std::string> (*call)(Stub& service, absl::string_view query,
                                      const std::string& authorization);
};

constexpr Method kMethods[] = {
    {"ListRuns", Call<v1::ListRunsRequest, v1::ListRunsResponse, &Stub::ListRuns>},
    {"GetRun", Call<v1::GetRunRequest, v1::GetRunResponse, &Stub::GetRun>},
    {"GetStep", Call<v1::GetStepRequest, v1::GetStepResponse, &Stub::GetStep>},
    {"ListSteps", Call<v1::ListStepsRequest, v1::ListStepsResponse, &Stub::ListSteps>},
    {"GetServer", Call<v1::GetServerRequest, v1::GetServerResponse, &Stub::GetServer>},
    {"InspectRun", Call<v1::InspectRunRequest, v1::InspectRunResponse, &Stub::InspectRun>},
    {"InspectSequence",
     Call<v1::InspectSequenceRequest, v1::InspectSequenceResponse, &Stub::InspectSequence>},
};

}  // namespace

absl::StatusOr<std::string> CallForJson(Stub& service, absl::string_view method,
                                        absl::string_view query, const std::string& authorization) {
  for (const Method& known : kMethods) {
    if (known.name == method) return known.call(service, query, authorization);
  }
  return absl::NotFoundError(absl::StrCat("no method '", method, "' over HTTP"));
}

std::string ErrorAsJson(const absl::Status& status) {
  const nlohmann::json error = {{"code", absl::StatusCodeToString(status.code())},
                                {"message", std::string(status.message())}};
  return error.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace sis
