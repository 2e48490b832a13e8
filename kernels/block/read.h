// Records of a block as arrays.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/block/block.h"

namespace sis {

// Reads sampled_ids [T] and ids [S], position after position.
void ReadBlockIds(const BlockView& block, std::span<int32_t> sampled_ids, std::span<int32_t> ids);

// Reads ids [T, slots], with -1 in unused slots. `slots` must be at least the block's.
void ReadBlockIdRows(const BlockView& block, size_t slots, std::span<int32_t> ids);

// Reads the behaviour log-probs [T, slots] that decisions use, with -inf in unused slots.
void ReadBlockLogProbRows(const BlockView& block, size_t slots, std::span<float> log_probs);

}  // namespace sis
