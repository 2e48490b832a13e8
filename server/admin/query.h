// What requests take from the query of a URL, as in run_id=r&draw=5.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// With every %XX as the byte that it stands for; what only begins so is left as it is.
std::string PercentDecoded(absl::string_view text);

// The value of a name in a query, decoded; empty if it isn't there.
std::string QueryValue(absl::string_view query, absl::string_view name);

// Fills in those fields that the request has of run_id, draw, sequence and attempt. InvalidArgument
// for a value that is no number.
absl::Status ReadQuery(absl::string_view query, v1::ListRunsRequest& request);
absl::Status ReadQuery(absl::string_view query, v1::GetServerRequest& request);
absl::Status ReadQuery(absl::string_view query, v1::GetRunRequest& request);
absl::Status ReadQuery(absl::string_view query, v1::ListStepsRequest& request);
absl::Status ReadQuery(absl::string_view query, v1::ListSequencesRequest& request);
absl::Status ReadQuery(absl::string_view query, v1::InspectRunRequest& request);
absl::Status ReadQuery(absl::string_view query, v1::GetStepRequest& request);
absl::Status ReadQuery(absl::string_view query, v1::InspectSequenceRequest& request);

}  // namespace sis
