// InspectRun over several replicas.
#pragma once

#include <vector>

#include "sis/v1/ratio_service.pb.h"

namespace sis {

// Sequences by id, the largest deviations of all, and tokens with their counts added up. A count
// leaves out the replicas that don't name the token, as it doesn't stand out there.
v1::InspectRunResponse MergeInspections(const std::vector<v1::InspectRunResponse>& parts);

}  // namespace sis
