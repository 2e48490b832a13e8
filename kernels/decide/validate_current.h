// Checks current values (docs/numerics.md, section 2).
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/decide/backend.h"

namespace sis {

// Checks the current values of a range, GATHERED or REDUCED. InvalidArgument names field,
// position and value.
absl::Status ValidateCurrent(const BlockRange& behavior, const CurrentView& current,
                             uint32_t first_position);

}  // namespace sis
