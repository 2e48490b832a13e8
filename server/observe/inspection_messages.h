// Responses of InspectRun and InspectSequence from the inspected values.
#pragma once

#include "absl/status/status.h"
#include "server/cache/run.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

void InspectRun(const Run& run, v1::InspectRunResponse& response);
// Returns InvalidArgument if the request names no sequence, NotFound if none of its values are
// kept.
absl::Status InspectSequence(const Run& run, const v1::InspectSequenceRequest& request,
                             v1::InspectSequenceResponse& response);

}  // namespace sis
