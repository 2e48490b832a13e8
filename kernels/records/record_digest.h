// Digests of what is recorded, position by position (docs/numerics.md, section 9).
#pragma once

#include <cstdint>
#include <span>

#include "kernels/records/record_view.h"

namespace sis {

// The addend of one position; the digest of a range is the sum, mod 2^64, over the positions that
// have a record. ids and log_probs are the K slots, unused ones included.
uint64_t PositionDigest(uint32_t position, int32_t sampled_id, float sampled_log_prob,
                        std::span<const int32_t> ids, std::span<const float> log_probs);

// DigestOfRows of rows with counts, one by one, as where the processor has no instruction for it.
uint64_t DigestOfPaddedRows(uint32_t first_position, const RecordView& rows);

// The sum of the addends of n consecutive positions with a record, the first at `first_position`.
uint64_t DigestOfRows(uint32_t first_position, const RecordView& rows);

}  // namespace sis
