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
                             uint32_t first_position, std::span<uint8_t> ranks);

}  // namespace sis
