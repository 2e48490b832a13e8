// The list of base algorithms, which use modified ratios (docs/algorithms.md).
#pragma once

#include <string_view>
#include <variant>

#include "absl/status/status.h"
#include "kernels/decide/algorithms/acceptance_weights.h"
#include "kernels/decide/algorithms/algorithm_input.h"
#include "kernels/decide/algorithms/clip_cov.h"
#include "kernels/decide/algorithms/constant_weights.h"
#include "kernels/decide/algorithms/dppo.h"
#include "kernels/decide/algorithms/gspo.h"
#include "kernels/decide/algorithms/ratio_clip.h"

namespace sis {

// An algorithm with its parameters.
using Algorithm = std::variant<ImportanceSampling, NoCorrection, Grpo, Dapo, Gspo, Cispo, DppoTopK,
                               DppoBinary, ClipCov, Tis, IcePop, SoftAcceptance, DampedTruncation>;

// Returns the name of its field in the API, in lower case with underscores.
std::string_view AlgorithmName(const Algorithm& algorithm);

// Returns true if the algorithm weighs tokens by acceptance probabilities, the importance ratio and
// the advantage.
bool WeighsByAcceptance(const Algorithm& algorithm);

// Returns InvalidArgument if the algorithm reads advantages and there are none, or if one is out of
// range; the error names the first.
absl::Status CheckAdvantages(const Algorithm& algorithm, const AlgorithmInput& batch);

// Fills the non-empty arrays of `output`. The parameters must be valid, the arrays that the
// algorithm reads must be present, and advantages must have passed CheckAdvantages. A pure function
// of its input, with the same bits on every machine.
void ApplyAlgorithm(const Algorithm& algorithm, const AlgorithmInput& batch,
                    const AlgorithmOutput& output);

}  // namespace sis
