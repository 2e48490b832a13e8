// Whether values are valid, on vectors: at the speed of evaluating them, but without a reason.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/decide/backend.h"
#include "kernels/records/record_view.h"

namespace sis {

// True if the records are valid (docs/numerics.md, section 2), with the rank of each sampled token
// in ranks [T]. False if not, and always for a few positions and on machines without vectors; ranks
// may then hold anything. Lengths must agree.
bool RecordsAreQuicklySeenValid(const RecordView& records, int slots, int32_t vocabulary_size,
                                std::span<uint8_t> ranks);

}  // namespace sis
