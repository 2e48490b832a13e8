// Records of a block as arrays.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/block/block.h"

namespace sis {

// sampled_ids [T] and ids [S], position after position.
void ReadBlockIds(const BlockView& block, std::span<int32_t> sampled_ids, std::span<int32_t> ids);

// ids [T, slots], with -1 in slots that are not used. `slots` is at least the block's.
void ReadBlockIdRows(const BlockView& block, size_t slots, std::span<int32_t> ids);

// The behaviour log-probs [T, slots] that decisions are made with, -inf in slots that are not used.
void ReadBlockLogProbRows(const BlockView& block, size_t slots, std::span<float> log_probs);

}  // namespace sis
