// Clip-Cov (Cui et al., 2025, "The entropy mechanism of reinforcement learning for reasoning
// language models"): drops the update of a few of the tokens whose log-prob and advantage covary
// most.
#pragma once

#include <string_view>
#include <vector>

#include "kernels/decide/algorithms/algorithm_input.h"
#include "kernels/decide/algorithms/parameter.h"

namespace sis {

struct ClipCov {
  static constexpr std::string_view kName = "clip_cov";
  // Candidates have a covariance strictly between the bounds. With upper = kNoUpperBound and
  // fraction = 1 this is the indicator of the paper's tab:trick.
  float lower = 1.0f;  // all three are the authors' values
  float upper = 5.0f;
  float fraction = 0.0002f;  // of all unmasked positions; at least one is dropped

  std::vector<Parameter> Parameters() {
    return {{"lower", &lower, -kNoUpperBound, kNoUpperBound},
            {"upper", &upper, lower, kNoUpperBound},
            {"fraction", &fraction, 0, 1}};
  }

  // Surrogates and coefficients are the ratio, or 0 at dropped positions. The draw determines which
  // candidates are dropped, independently of the order of parts: the ones with the smallest words
  // of Philox, in a domain of its own (docs/algorithms.md).
  void Apply(const AlgorithmInput& batch, const AlgorithmOutput& output) const;
};

}  // namespace sis
