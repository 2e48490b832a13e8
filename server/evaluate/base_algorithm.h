// Applies the base algorithm of an Evaluate to all of its positions.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "server/evaluate/evaluate_input.h"
#include "server/evaluate/evaluate_output.h"
#include "server/messages/slices.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// Computes surrogates, coefficients and log-ratio sums of the slices from their evaluated
// positions, and adds the wanted ones to the response. Returns InvalidArgument if an advantage is
// out of the algorithm's range.
absl::Status AddAlgorithmOutputs(const EvaluateInput& input, uint64_t run_seed,
                                 const std::vector<SliceRange>& slices,
                                 const PositionOutput& positions, v1::EvaluateResponse& response);

}  // namespace sis
