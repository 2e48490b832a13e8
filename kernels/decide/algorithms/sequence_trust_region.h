// Trust regions of whole sequences (docs/algorithms.md): a divergence of every token, put together
// over a sequence, within bounds. k1, k2 and k3 are the estimators of Schulman (2020,
// "Approximating KL divergence") of KL(q || p), from the sampled token's ratio w = p(y) / q(y).
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/numerics/exp32.h"

namespace sis {

enum class Divergence {
  kK1,              // -log w
  kK2,              // (log w)^2 / 2
  kK3,              // w - 1 - log w
  kTotalVariation,  // of the position, see TopKTotalVariation
  kKl,              // of the position, see TopKKlDivergence
};

enum class Aggregate { kSum, kMean, kMax };

// Nats. A log-ratio beyond counts as this; verl has the same limit.
inline constexpr double kLargestLogRatio = 20.0;

// k1, k2 or k3 of log w, which may be infinite and must not be NaN.
inline double EstimatedDivergence(Divergence divergence, float log_ratio) {
  const double x = std::clamp(double{log_ratio}, -kLargestLogRatio, kLargestLogRatio);
  if (divergence == Divergence::kK1) return -x;
  if (divergence == Divergence::kK2) return 0.5 * (x * x);
  if (x > 0.5 || x < -0.5) return double{Exp32(static_cast<float>(x))} - 1.0 - x;
  // x^2 (1/2! + x/3! + x^2/4! + ...): near 1 the difference of w would lose its digits.
  double series = 0.0;
  for (int n = 14; n >= 2; --n) series = (1.0 + x * series) / n;
  return x * x * series;
}

// Of the tokens of a sequence, added in their order.
struct SequenceDivergence {
  double sum = 0.0;
  double largest = -std::numeric_limits<double>::infinity();
  int64_t positions = 0;

  void Add(double divergence) {
    sum += divergence;
    largest = std::max(largest, divergence);
    ++positions;
  }
  // 0 if there is no position.
  double Of(Aggregate aggregate) const {
    if (positions == 0) return 0.0;
    if (aggregate == Aggregate::kMax) return largest;
    return aggregate == Aggregate::kMean ? sum / static_cast<double>(positions) : sum;
  }
};

struct SequenceTrustRegion {
  Divergence divergence = Divergence::kK1;
  Aggregate aggregate = Aggregate::kSum;
  // What is on a bound is within.
  double lower = -std::numeric_limits<double>::infinity();
  double upper = std::numeric_limits<double>::infinity();
  // Leaves out only those positions. A sequence is never outside if none of its positions that
  // count has an advantage below 0.
  bool negative_advantages_only = false;

  bool Holds(double value) const { return value >= lower && value <= upper; }
};

// Whether it looks at both policies on the set, not at the sampled token alone.
inline bool NeedsEverySlot(const SequenceTrustRegion& region) {
  return region.divergence == Divergence::kTotalVariation || region.divergence == Divergence::kKl;
}

}  // namespace sis
