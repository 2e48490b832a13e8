// Which records are valid (docs/numerics.md, section 2). Only valid ones may be stored.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/records/record_view.h"

namespace sis {

// Checks the records of positions first_position, first_position + 1, ..., and writes the rank of
// each sampled token to ranks [T]. InvalidArgument names field, position and value. The arrays'
// lengths must agree.
absl::Status ValidateRecords(const RecordView& records, int slots, int32_t vocabulary_size,
                             uint32_t first_position, std::span<uint16_t> ranks);

// The same on vectors: at the speed of evaluating them, but without a reason. True if the records
// are valid, with the rank of each sampled token in ranks [T]. False if not, and always for a few
// positions and on machines without vectors; ranks may then hold anything. Lengths must agree.
bool RecordsAreQuicklySeenValid(const RecordView& records, int slots, int32_t vocabulary_size,
                                std::span<uint16_t> ranks);

}  // namespace sis
