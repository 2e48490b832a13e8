// Positions with sets cut at a mass, for reports.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>

#include "kernels/numerics/log_prob.h"
#include "tests/conformance/policy_pairs.h"
#include "tests/conformance/positions.h"

namespace sis::cuda {

// Returns random positions of at most `slots` slots. The number of used slots is distributed as in
// Qwen3-4B's recorded sets, cut at a mass of 0.97 (tests/bench/trainer_path/batch.py): mostly one,
// rarely many.
inline Positions PositionsCutToMass(std::mt19937_64& random, int slots, size_t n) {
  Positions positions = RandomPositions(random, slots, n);
  const auto k = static_cast<size_t>(slots);
  for (size_t i = 0; i < n; ++i) {
    const bool one = std::uniform_real_distribution<double>()(random) < 0.5;
    const double more = 2 + std::exp(std::normal_distribution<double>(0.5, 1.6)(random));
    const size_t used = one ? 1 : static_cast<size_t>(std::min<double>(slots, std::floor(more)));
    for (size_t slot = i * k + used; slot < (i + 1) * k; ++slot) {
      // A sampled token from the tail stays outside the set.
      positions.ids[slot] = -1;
      positions.behavior_log_probs[slot] = kMinusInfinity;
    }
  }
  return positions;
}

}  // namespace sis::cuda
