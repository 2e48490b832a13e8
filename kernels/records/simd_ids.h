// The ids of whole groups of positions, packed on vectors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/records/record_view.h"

namespace sis {

// Packs the ids of whole groups of 16 positions into rows of `bits`: the sampled ones, then rank by
// rank (docs/page_format.md). Slots from used_slots [T] on become zeros; ids of the others must be
// below 2^bits. False, with nothing done, on machines without vectors.
bool PackIdsOnVectors(const RecordView& records, int slots, std::span<const uint16_t> used_slots,
                      int bits, std::span<std::byte> to);

}  // namespace sis
