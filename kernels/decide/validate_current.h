// Checks current values (docs/numerics.md, section 2).
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/decide/backend.h"

namespace sis {

// Checks the current values of a range, GATHERED or REDUCED. InvalidArgument names field,
// position and value.
absl::Status ValidateCurrent(const BlockRange& behavior, const CurrentView& current,
                             uint32_t first_position);

// Checks the log-probs of sampled tokens. `field` is their name in messages.
absl::Status ValidateSampledLogProbs(absl::string_view field, std::span<const float> log_probs,
                                     uint32_t first_position);

}  // namespace sis
