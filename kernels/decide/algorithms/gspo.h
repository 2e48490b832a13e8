// GSPO (Zheng et al., 2025): one ratio per sequence, the geometric mean of its tokens' ratios, is
// clipped. On modified ratios it is the paper's eq:gspo_is: an on-policy token adds 0 and counts.
#pragma once

#include <string_view>
#include <vector>

#include "kernels/decide/algorithms/algorithm_input.h"
#include "kernels/decide/algorithms/parameter.h"

namespace sis {

struct Gspo {
  static constexpr std::string_view kName = "gspo";
  float epsilon_low = 3e-4f;  // both from the paper's tab:hparams_math
  float epsilon_high = 4e-4f;

  std::vector<Parameter> Parameters() {
    return {{"epsilon_low", &epsilon_low, 0, 1}, {"epsilon_high", &epsilon_high, 0, kNoUpperBound}};
  }

  // Surrogates are clip(s~) at every position of a sequence. Coefficients are s~, or 0 where the
  // clip applies to the position's advantage and s~. For a trainer that averages over the tokens of
  // a sequence, this is the gradient of the sequence objective min(s~ A, clip(s~) A).
  void Apply(const AlgorithmInput& batch, const AlgorithmOutput& output) const;
};

// Returns the sum over one part.
LogRatioSum SumLogRatios(std::span<const TokenState> states, std::span<const float> log_ratios);

// Returns s~ = e^(sum / positions); 1 without positions.
float SequenceRatio(const LogRatioSum& sum);

}  // namespace sis
