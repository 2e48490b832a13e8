// How large the differences of two recordings are, and what is known to make them so large.
#pragma once

#include <string>

#include "client/compare/compared_positions.h"

namespace sis {

// D per token, nats.
struct DifferenceSize {
  size_t positions = 0;
  double mean = 0;
  double standard_error = 0;
  // Mean total variation of the lists, where both files have one; NaN if they never do.
  double lists = 0;
  bool is_noise = false;  // both are of the size of numerical noise, surely or not
  std::string level;      // of noise, for programs; does not change
  // Whether the differences are of the size of numerical noise, and of which; a sentence.
  std::string meaning;
};

DifferenceSize MeasureDifference(const Part& part);

}  // namespace sis
