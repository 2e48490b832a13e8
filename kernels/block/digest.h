// Digests of records (docs/numerics.md, section 9).
#pragma once

#include <cstdint>

#include "kernels/block/block.h"

namespace sis {

// Returns the sum, mod 2^64, of the addends of the block's positions [first, first + count). An
// addend depends only on the position's number and its bytes in each section. The digest of a range
// is therefore independent of cuts and merges of blocks.
uint64_t DigestOf(const BlockView& block, uint32_t first, uint32_t count);

}  // namespace sis
