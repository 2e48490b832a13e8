// What the service knows, as JSON.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sis/v1/ratio_service.grpc.pb.h"

namespace sis {

// Calls a method that changes nothing, by its name in the API; `query` has the fields of its
// request (run_id, draw, sequence, attempt), as in a URL. `authorization` says who calls, as gRPC
// and HTTP have it; empty: nobody does. Returns the response in protobuf's JSON, every field
// present; of "Diagnose", which is no method of the API, what sisctl diagnose --json prints.
// NotFound for a method that isn't offered, InvalidArgument for a value that is no number, or the
// status of the call.
absl::StatusOr<std::string> CallForJson(v1::RatioService::StubInterface& service,
                                        absl::string_view method, absl::string_view query,
                                        const std::string& authorization = "");

// The same of an error: its code and message.
std::string ErrorAsJson(const absl::Status& status);

}  // namespace sis
