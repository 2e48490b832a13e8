// Base algorithms, which use modified ratios. rules.h lists them.
#pragma once

#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "kernels/decide/algorithms/algorithm_input.h"
#include "kernels/decide/algorithms/rules.h"

namespace sis {

// Returns every algorithm once, with its defaults.
std::vector<Algorithm> AllAlgorithms();

// Returns the name of its field in the API, in lower case with underscores.
std::string_view AlgorithmName(const Algorithm& algorithm);

// Returns the algorithm's parameters. `algorithm` must outlive them.
std::vector<Parameter> ParametersOf(Algorithm& algorithm);

// Returns InvalidArgument, with the parameter's name and value, if a parameter is out of range.
absl::Status CheckParameters(Algorithm algorithm);

// Returns true if the algorithm weighs tokens by acceptance probabilities, the importance ratio and
// the advantage.
bool WeighsByAcceptance(const Algorithm& algorithm);

// Returns true if the algorithm reads total variations. It needs log-probs at every slot, and two
// policies.
bool ReadsTotalVariations(const Algorithm& algorithm);

// Returns true if coefficients depend on advantages.
bool ReadsAdvantages(const Algorithm& algorithm, bool three_policies);

// Returns InvalidArgument if surrogates depend on advantages and there are none, or if one is out
// of range; the error names the first.
absl::Status CheckAdvantages(const Algorithm& algorithm, const AlgorithmInput& batch);

// Fills the non-empty arrays of `output`. The parameters must be valid, the arrays that the
// algorithm reads must be present, and advantages must have passed CheckAdvantages. A pure function
// of its input, with the same bits on every machine.
void ApplyAlgorithm(const Algorithm& algorithm, const AlgorithmInput& batch,
                    const AlgorithmOutput& output);

}  // namespace sis
