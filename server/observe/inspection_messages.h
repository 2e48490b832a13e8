// What is kept of evaluations for a closer look, as InspectRun and InspectSequence answer.
#pragma once

#include "absl/status/status.h"
#include "server/cache/run.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

void InspectRun(const Run& run, v1::InspectRunResponse& response);
// InvalidArgument if the request names no sequence, NotFound if nothing is kept of it.
absl::Status InspectSequence(const Run& run, const v1::InspectSequenceRequest& request,
                             v1::InspectSequenceResponse& response);

}  // namespace sis
