// Defines which values count as a log-prob, and which as 0 (docs/numerics.md, sections 1 and 2).
#pragma once

#include <limits>

#include "kernels/numerics/host_device.h"

namespace sis {

inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Maximum amount that rounding may add to a log-prob of 0 or to a mass of 1.
inline constexpr float kRoundingSlack = 0x1p-6f;

// Both return false for NaN.
SIS_HOST_DEVICE inline bool IsLogProb(float x) { return x <= kRoundingSlack; }
SIS_HOST_DEVICE inline bool IsMass(float x) { return x >= 0.0f && x <= 1.0f + kRoundingSlack; }

// Returns 0 for values that subnormals could affect. Machines that flush subnormals then agree with
// machines that don't.
SIS_HOST_DEVICE inline float Flush(float x) { return x < 0x1p-100f && x > -0x1p-100f ? 0.0f : x; }

}  // namespace sis
