// Finds faults of records (docs/numerics.md, section 2) that their block would hide. CheckBlock
// finds the others: an id that stands twice, and a mass above 1 + 1/64.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/block/record_view.h"

namespace sis {

// Checks the records of positions first_position, first_position + 1, ... Writes the number of used
// slots to counts [T], and the slot of each sampled token, or kBlockRankOutside, to ranks [T]. With
// `mass` in (0, 1), sets end where their mass reaches it (section 4), and later slots may have any
// value. Returns InvalidArgument, naming field, position and value, for an invalid record. The
// arrays' lengths must agree, with `slots` in [1, kMaxBlockSlots].
absl::Status ValidateRecords(const RecordView& records, int slots, int32_t vocabulary_size,
                             uint32_t first_position, double mass, std::span<uint8_t> counts,
                             std::span<uint8_t> ranks);

// Makes the same checks slot by slot. ValidateRecords needs it to say what is wrong.
absl::Status ValidateRecordsOneByOne(const RecordView& records, int slots, int32_t vocabulary_size,
                                     uint32_t first_position, double mass,
                                     std::span<uint8_t> counts, std::span<uint8_t> ranks);

// Makes the same checks by vectors. Returns true if all records are valid; otherwise counts and
// ranks are undefined.
bool RecordsAreQuicklySeenValid(const RecordView& records, int slots, int32_t vocabulary_size,
                                double mass, std::span<uint8_t> counts, std::span<uint8_t> ranks);

}  // namespace sis
