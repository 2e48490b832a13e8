// Digests of what is recorded, position by position (docs/numerics.md, section 9).
#pragma once

#include <cstdint>

#include "kernels/block/block.h"

namespace sis {

// The sum, mod 2^64, of the addends of the block's positions [first, first + count). An addend
// depends on the position's number and its bytes in each section, so the digest of a range does not
// depend on how blocks were cut or merged.
uint64_t DigestOf(const BlockView& block, uint32_t first, uint32_t count);

}  // namespace sis
