// Counts of evaluated positions.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "kernels/decide/statistics.h"
#include "kernels/numerics/sums.h"
#include "server/cache/ages.h"
#include "server/cache/missing.h"

namespace sis {

// The sums at one point of the prefix curve: with only k slots.
struct PrefixPointSums {
  int64_t positions = 0;
  int64_t residual_mass = 0;
  int64_t expected_acceptance = 0;

  PrefixPointSums& operator+=(const PrefixPointSums& other) { return AddEach(other, *this); }
};

// The sum of two is the counts of both; the order of additions does not matter.
struct Evaluated {
  Sums sums;
  Statistics statistics;
  SumsByAge ages = {};                             // together the scored positions
  MissingCounts missing = {};                      // by MissingReason; together sums.missing
  std::map<int, PrefixPointSums> prefix_curve;     // by k; at most kMaxBlockSlots
  std::map<std::string, CorrectionSums> observed;  // by name

  Evaluated& operator+=(const Evaluated& other) {
    sums += other.sums;
    statistics += other.statistics;
    AddEach(other.ages, ages);
    AddEach(other.missing, missing);
    for (const auto& [top_k, point] : other.prefix_curve) prefix_curve[top_k] += point;
    for (const auto& [name, correction] : other.observed) observed[name] += correction;
    return *this;
  }
};

}  // namespace sis
