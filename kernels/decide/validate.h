// What input is valid (docs/numerics.md, section 2). Only valid input may be stored or evaluated.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/decide/backend.h"
#include "kernels/decide/top_k_sets/top_k_sets.h"
#include "kernels/records/record_view.h"

namespace sis {

// Checks the records of positions first_position, first_position + 1, ..., and writes the rank of
// each sampled token to ranks [T]. InvalidArgument names field, position and value. The arrays'
// lengths must agree.
absl::Status ValidateRecords(const RecordView& records, int slots, int32_t vocabulary_size,
                             uint32_t first_position, std::span<uint8_t> ranks);

// Checks the current values of a segment, GATHERED or REDUCED. InvalidArgument names field,
// position and value.
absl::Status ValidateCurrent(const BehaviorView& behavior, const CurrentView& current, int slots,
                             uint32_t first_position);

// Checks the current policy's own sets (docs/numerics.md, section 11). InvalidArgument names field,
// position and value. The arrays' lengths must agree.
absl::Status ValidateTopKSets(const TopKSets& sets, int32_t vocabulary_size,
                              uint32_t first_position);
// And log p of the sampled tokens beside them.
absl::Status ValidateSampledLogProbs(absl::string_view field, std::span<const float> log_probs,
                                     uint32_t first_position);

}  // namespace sis
