// The temperature at which one recording looks most like the other.
#pragma once

#include <cstddef>
#include <span>

#include "client/compare/compared_positions.h"

namespace sis {

struct TemperatureFit {
  size_t positions = 0;  // with at least three tokens in common
  // The log-probs of B are about `slope` times those of A, up to what normalises them: B is A at
  // temperature 1 / slope. 1 if there are no positions, or the log-probs hardly correlate.
  double slope = 1;
  bool correlates = false;
  // Of the squared differences, the share that the slope takes away. In [0, 1].
  double explained = 0;
};

TemperatureFit FitTemperature(std::span<const ComparedPosition> positions);

}  // namespace sis
