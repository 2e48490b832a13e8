// Descriptions of runs for GetRun and ListRuns, with their verdicts.
#pragma once

#include "server/cache/caller.h"
#include "server/cache/run.h"
#include "server/cache/run_registry.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

v1::Run Describe(const Run& run);

// Lists the runs that `caller` may use, by run id.
void ListRuns(const RunRegistry& registry, const Caller& caller, v1::ListRunsResponse& response);

}  // namespace sis
