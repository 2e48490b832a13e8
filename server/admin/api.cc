#include "server/admin/api.h"

#include <google/protobuf/util/json_util.h>
#include <grpc/support/time.h>

#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/compare/run_diagnosis.h"
#include "server/admin/query.h"

namespace sis {
namespace {

using Stub = v1::RatioService::StubInterface;

// More than any of these calls takes.
constexpr int kDeadlineSeconds = 10;
// Of all calls of a diagnosis together: less than the page waits (client/page/api.js).
constexpr int kDiagnosisSeconds = 7;

// By a clock that nobody sets: by the other one it would have passed once somebody did.
gpr_timespec After(int seconds) {
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_seconds(seconds, GPR_TIMESPAN));
}

absl::StatusOr<std::string> ToJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (!status.ok()) return absl::InternalError(std::string(status.message()));
  return json;
}

template <typename Request, typename Response>
using Rpc = grpc::Status (Stub::*)(grpc::ClientContext*, const Request&, Response*);

template <typename Request, typename Response>
absl::StatusOr<Response> Ask(Stub& service, Rpc<Request, Response> rpc, const Request& request,
                             const std::string& authorization, gpr_timespec deadline) {
  grpc::ClientContext context;
  context.set_deadline(deadline);
  if (!authorization.empty()) context.AddMetadata("authorization", authorization);
  Response response;
  const grpc::Status status = (service.*rpc)(&context, request, &response);
  if (status.ok()) return response;
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

template <typename Request, typename Response, Rpc<Request, Response> kRpc>
absl::StatusOr<std::string> Call(Stub& service, absl::string_view query,
                                 const std::string& authorization) {
  Request request;
  if (absl::Status status = ReadQuery(query, request); !status.ok()) return status;
  const absl::StatusOr<Response> response =
      Ask<Request, Response>(service, kRpc, request, authorization, After(kDeadlineSeconds));
  return response.ok() ? ToJson(*response) : response.status();
}

// As sisctl does.
absl::StatusOr<std::string> Diagnose(Stub& service, absl::string_view query,
                                     const std::string& authorization) {
  // It takes some memory and a core: nobody gets more than one by clicking often.
  static std::mutex one_at_a_time;
  const std::unique_lock lock(one_at_a_time, std::try_to_lock);
  if (!lock.owns_lock()) {
    return absl::UnavailableError("another diagnosis is being made: ask again in a few seconds");
  }
  const std::string run_id = QueryValue(query, "run_id");
  const gpr_timespec deadline = After(kDiagnosisSeconds);
  RunCalls calls;
  calls.get_run = [&]() -> absl::StatusOr<v1::Run> {
    v1::GetRunRequest request;
    request.set_run_id(run_id);
    absl::StatusOr<v1::GetRunResponse> response = Ask<v1::GetRunRequest, v1::GetRunResponse>(
        service, &Stub::GetRun, request, authorization, deadline);
    if (!response.ok()) return response.status();
    return std::move(*response->mutable_run());
  };
  calls.inspect_run = [&] {
    v1::InspectRunRequest request;
    request.mutable_run()->set_run_id(run_id);
    return Ask<v1::InspectRunRequest, v1::InspectRunResponse>(service, &Stub::InspectRun, request,
                                                              authorization, deadline);
  };
  calls.inspect_sequence = [&](const v1::SequenceRef& sequence) {
    v1::InspectSequenceRequest request;
    request.mutable_run()->set_run_id(run_id);
    *request.mutable_sequence() = sequence;
    return Ask<v1::InspectSequenceRequest, v1::InspectSequenceResponse>(
        service, &Stub::InspectSequence, request, authorization, deadline);
  };
  const absl::StatusOr<RunDiagnosis> diagnosis = DiagnoseRun(calls);
  if (!diagnosis.ok()) return diagnosis.status();
  return RunDiagnosisJson(*diagnosis);
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
    {"GetHistory", Call<v1::GetHistoryRequest, v1::GetHistoryResponse, &Stub::GetHistory>},
    {"ListSequences",
     Call<v1::ListSequencesRequest, v1::ListSequencesResponse, &Stub::ListSequences>},
    {"GetServer", Call<v1::GetServerRequest, v1::GetServerResponse, &Stub::GetServer>},
    {"InspectRun", Call<v1::InspectRunRequest, v1::InspectRunResponse, &Stub::InspectRun>},
    {"InspectSequence",
     Call<v1::InspectSequenceRequest, v1::InspectSequenceResponse, &Stub::InspectSequence>},
    {"Diagnose", Diagnose},
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
