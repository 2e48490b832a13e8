// Runs as GetRun and ListRuns describe them, with how they do.
#pragma once

#include "absl/status/status.h"
#include "server/cache/caller.h"
#include "server/cache/run.h"
#include "server/cache/run_registry.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

v1::Run Describe(const Run& run);

// InvalidArgument as ListRunsRequest says.
absl::Status ListRuns(const RunRegistry& registry, const Caller& caller,
                      const v1::ListRunsRequest& request, v1::ListRunsResponse& response);

}  // namespace sis
