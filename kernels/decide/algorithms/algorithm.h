// The base algorithms, on modified ratios (docs/algorithms.md): this is their list.
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

// Lower case, with underscores: the name of its field in the API.
std::string_view AlgorithmName(const Algorithm& algorithm);

// Whether it weighs tokens by acceptance probabilities, the importance ratio and the advantage.
bool WeighsByAcceptance(const Algorithm& algorithm);

// InvalidArgument names the parameter, or the array with position and value, that is wrong or
// missing. Arrays that are there must have N elements.
absl::Status ValidateAlgorithm(const Algorithm& algorithm, const AlgorithmInput& batch,
                               const AlgorithmOutput& output);

// Fills what is wanted. The input must be valid. A pure function of its input: the same bits on
// every machine.
void ApplyAlgorithm(const Algorithm& algorithm, const AlgorithmInput& batch,
                    const AlgorithmOutput& output);

}  // namespace sis
