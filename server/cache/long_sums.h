// Sums over many draws, in float64, because they outgrow the fixed point of one draw's sums.
#pragma once

#include <cstdint>

#include "kernels/decide/statistics.h"
#include "kernels/numerics/sums.h"
#include "server/cache/ages.h"

namespace sis {

// The Sums of many draws: positions, nats and shares.
struct LongSums {
  int64_t accepted = 0;
  int64_t rejected = 0;
  int64_t outside_top_k = 0;
  int64_t missing = 0;
  int64_t envelope_violations = 0;
  double d = 0;
  double residual_mass = 0;
  double acceptance_probability = 0;
  double expected_acceptance = 0;
  double k3 = 0;
  double total_variation = 0;

  LongSums& operator+=(const Sums& sums) {
    accepted += sums.accepted;
    rejected += sums.rejected;
    outside_top_k += sums.outside_top_k;
    missing += sums.missing;
    envelope_violations += sums.envelope_violations;
    d += FromFixed(sums.d);
    residual_mass += FromFixed(sums.residual_mass);
    acceptance_probability += FromFixed(sums.acceptance_probability);
    expected_acceptance += FromFixed(sums.expected_acceptance);
    k3 += FromFixed(sums.k3);
    total_variation += FromFixed(sums.total_variation);
    return *this;
  }
};

// The CorrectionSums of many draws.
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
};

// The AgeSums of many draws.
struct AgeTotals {
  int64_t accepted = 0;
  int64_t rejected = 0;
  int64_t outside_top_k = 0;
  double d = 0;      // nats
  double d_sis = 0;  // nats
  double weight = 0;
  double weight_squared = 0;

  AgeTotals& operator+=(const AgeSums& sums) {
    accepted += sums.accepted;
    rejected += sums.rejected;
    outside_top_k += sums.outside_top_k;
    d += FromFixed(sums.d);
    d_sis += FromFixed(sums.d_sis);
    weight += FromCountedWeight(sums.weight);
    weight_squared += FromCountedWeight(sums.weight_squared);
    return *this;
  }
};

}  // namespace sis
