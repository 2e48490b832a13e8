// Whether current values are valid, on vectors: at the speed of evaluating them, but without a
// reason.
#pragma once

#include "kernels/backend.h"

namespace sis {

// True if the GATHERED log-probs of all used slots are valid (docs/numerics.md, section 2): none
// NaN, none above the slack, covered masses within it. False if not, and always on machines without
// vectors and for positions that needs_scalar() names. Lengths must agree.
bool GatheredLogProbsAreValid(const BehaviorView& behavior, const CurrentView& current, int slots);

}  // namespace sis
