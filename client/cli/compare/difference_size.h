// How large the differences of two recordings are, and what is known to make them so large.
#pragma once

#include <string>

#include "client/cli/compare/check.h"
#include "client/cli/compare/decisions.h"

namespace sis {

// D per token, nats.
struct DifferenceSize {
  size_t positions = 0;
  double mean = 0;
  double standard_error = 0;
  bool is_noise = false;  // the mean is of the size of numerical noise, surely or not
  // Whether the differences are of the size of numerical noise, and of which; a sentence.
  std::string meaning;
};

DifferenceSize MeasureDifference(const Decisions& decisions);

// Differences larger than numerical noise: other weights, or another prompt.
Check CheckWeights(const DifferenceSize& size);

}  // namespace sis
