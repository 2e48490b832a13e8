// What a correction comes to over many draws.
#pragma once

#include "kernels/decide/statistics.h"

namespace sis {

// A CorrectionSums that does not outgrow its numbers.
struct CorrectionTotals {
  double positions = 0;
  double touched = 0;
  double zeroed = 0;
  double weight = 0;
  double weight_squared = 0;
  double abs_log_weight = 0;  // nats
  double gradient_mass = 0;

  CorrectionTotals& operator+=(const CorrectionSums& sums) {
    positions += static_cast<double>(sums.positions);
    touched += static_cast<double>(sums.touched);
    zeroed += static_cast<double>(sums.zeroed);
    weight += FromCountedWeight(sums.weight);
    weight_squared += FromCountedWeight(sums.weight_squared);
    abs_log_weight += FromFixed(sums.abs_log_weight);
    gradient_mass += FromCountedWeight(sums.gradient_mass);
    return *this;
  }
  CorrectionTotals& operator+=(const CorrectionTotals& other) {
    positions += other.positions;
    touched += other.touched;
    zeroed += other.zeroed;
    weight += other.weight;
    weight_squared += other.weight_squared;
    abs_log_weight += other.abs_log_weight;
    gradient_mass += other.gradient_mass;
    return *this;
  }
  friend bool operator==(const CorrectionTotals&, const CorrectionTotals&) = default;
};

}  // namespace sis
