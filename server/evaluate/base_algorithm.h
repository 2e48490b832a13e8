// Base algorithms: from their message to surrogates and coefficients.
#pragma once

#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/decide/algorithms/algorithm.h"
#include "server/evaluate/evaluate_input.h"
#include "server/slices/slices.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// With the defaults where parameters are unset. InvalidArgument names the parameter.
absl::StatusOr<Algorithm> ParseAlgorithm(const v1::Algorithm& message);

// What came of the positions of a request, for the algorithm to work on: [N] each.
struct EvaluatedPositions {
  std::span<const Decision> decisions;
  std::span<const float> log_modified_ratios;
  std::span<const float> sampled_log_probs;    // under the policy that was tested
  std::span<const float> reference_log_probs;  // under the ratio's divisor; see BatchView
  std::span<const float> total_variations;     // empty unless DppoTopK
};

// Fills in surrogates, coefficients and log-ratio sums. InvalidArgument if an advantage is unfit.
absl::Status AddAlgorithmOutputs(const EvaluateInput& input, uint64_t run_seed,
                                 const std::vector<SliceRange>& slices,
                                 const EvaluatedPositions& positions,
                                 v1::EvaluateResponse& response);

}  // namespace sis
