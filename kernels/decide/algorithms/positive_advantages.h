// SIS for positive advantages only: the tokens that are pushed down keep their importance ratio,
// whatever was decided (docs/algorithms.md).
#pragma once

#include <span>

#include "kernels/decide/algorithms/authors_code.h"
#include "kernels/decide/backend.h"
#include "kernels/numerics/exp32.h"

namespace sis {

// Replaces the modified ratios that a stretch was given by the unmodified ones at the positions
// whose advantage is not above 0. advantages [n]. `authors_code`: they were decided by
// EvaluateAuthorsCode, which limits log-ratios.
inline void KeepRatiosUnlessAdvantageIsPositive(const Stretch& stretch,
                                                std::span<const float> advantages,
                                                bool authors_code) {
  const OutputView& output = stretch.output;
  for (size_t i = 0; i < output.decisions.size(); ++i) {
    if (advantages[i] > 0.0f) continue;
    float log_ratio =
        Flush(stretch.current.sampled_log_probs[i] - stretch.behavior.sampled_log_probs[i]);
    if (authors_code) log_ratio = AuthorsCode::LimitLogRatio(log_ratio);
    if (!output.log_modified_ratios.empty()) output.log_modified_ratios[i] = log_ratio;
    if (!output.modified_ratios.empty()) output.modified_ratios[i] = Exp32(log_ratio);
  }
}

}  // namespace sis
