// The accept rate that an encoding leaves: the mean of (1 - xi) / M' over positions.
#pragma once

#include <span>

#include "kernels/records/encoding.h"
#include "tests/bench/encodings/policy_pairs.h"

namespace sis {

// As recorded in one of the codec's encodings.
double AcceptRate(const PolicyPairs& pairs, LogProbEncoding behavior);

// Codes that were considered besides: multiples of a step, counted down from a top, the lowest code
// for -inf.
struct UniformCode {
  const char* name;
  double floor;  // lower values leave the set, or saturate
  int bits;
  bool own_lowest;  // the step reaches just to the position's lowest slot, else to the floor
  bool own_top;     // counts down from the position's highest slot, else from 1/64
};

double AcceptRate(const PolicyPairs& pairs, const UniformCode& code);

}  // namespace sis
