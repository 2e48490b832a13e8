// The base algorithm of an Evaluate, over all of its positions.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "server/evaluate/evaluate_input.h"
#include "server/evaluate/evaluate_output.h"
#include "server/messages/slices.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// Fills in surrogates, coefficients and log-ratio sums of the slices, from what came of their
// positions. InvalidArgument if an advantage is unfit.
absl::Status AddAlgorithmOutputs(const EvaluateInput& input, uint64_t run_seed,
                                 const std::vector<SliceRange>& slices,
                                 const PositionOutput& positions, v1::EvaluateResponse& response);

}  // namespace sis
