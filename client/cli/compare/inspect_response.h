// A compared sequence as the service would answer InspectSequence, for the microscope.
#pragma once

#include "client/cli/compare/comparison.h"
#include "proto/sis/v1/ratio_service.pb.h"

namespace sis {

// One direction: `behavior` sampled, `current` is another policy, `decided` are the decisions of
// the common prefix.
v1::InspectSequenceResponse InspectResponse(const RecordedSets& behavior,
                                            const RecordedSets& current, int top_k,
                                            const std::vector<DecidedPosition>& decided);

}  // namespace sis
