// Which records are valid (docs/numerics.md, section 2). Only valid ones may be stored.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/block/record_view.h"

namespace sis {

// Checks the records of positions first_position, first_position + 1, ... Writes to counts [T] how
// many slots each uses, and to ranks [T] the slot of each sampled token, or kBlockRankOutside. With
// `mass` in (0, 1), sets end where their mass reaches it (section 4), and what stands behind may be
// anything. InvalidArgument names field, position and value. The arrays' lengths must agree, with
// `slots` in [1, kMaxBlockSlots].
absl::Status ValidateRecords(const RecordView& records, int slots, int32_t vocabulary_size,
                             uint32_t first_position, double mass, std::span<uint8_t> counts,
                             std::span<uint8_t> ranks);

// The same on vectors, without a reason. False also for a few positions and on machines without
// vectors; counts and ranks may then hold anything.
bool RecordsAreQuicklySeenValid(const RecordView& records, int slots, int32_t vocabulary_size,
                                double mass, std::span<uint8_t> counts, std::span<uint8_t> ranks);

}  // namespace sis
