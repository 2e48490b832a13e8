// D of a group of positions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

#include "client/compare/part.h"

namespace sis {

// abs(log w), nats, limited as in the service's sums (docs/numerics.md): where the current policy
// finds the token impossible, it is infinite. Of a position with a ratio.
inline double Deviation(const DecidedPosition& position) {
  return std::min(64.0, std::abs(static_cast<double>(position.log_ratio)));
}

struct LogRatios {
  size_t count = 0;
  // Of deviations, nats; 0 without a position.
  double mean = 0;
  double standard_error = 0;
};

// Of the positions with a ratio that `chosen` takes, a predicate of DecidedPosition.
template <typename Chosen>
LogRatios LogRatiosOf(std::span<const ComparedSequence> sequences, Chosen chosen) {
  LogRatios ratios;
  double sum = 0, squares = 0;
  for (const ComparedSequence& sequence : sequences) {
    for (const DecidedPosition& position : *sequence.decided) {
      if (position.decision == Decision::kMissing || !chosen(position)) continue;
      const double deviation = Deviation(position);
      ++ratios.count;
      sum += deviation;
      squares += deviation * deviation;
    }
  }
  if (ratios.count == 0) return ratios;
  const auto count = static_cast<double>(ratios.count);
  ratios.mean = sum / count;
  ratios.standard_error =
      std::sqrt(std::max(0.0, squares / count - ratios.mean * ratios.mean) / count);
  return ratios;
}

inline LogRatios LogRatiosOf(std::span<const ComparedSequence> sequences) {
  return LogRatiosOf(sequences, [](const DecidedPosition&) { return true; });
}

}  // namespace sis
