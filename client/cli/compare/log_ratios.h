// D of a group of positions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

#include "client/cli/compare/part.h"

namespace sis {

struct LogRatios {
  size_t count = 0;
  // Of abs(log w), nats; 0 without a position.
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
      const double deviation = std::abs(static_cast<double>(position.log_ratio));
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
