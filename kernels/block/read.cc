#include "kernels/block/read.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "kernels/numerics/log_prob.h"

namespace sis {
namespace {

// Calls read(index of the used slot, position, place in a row) for each used slot.
template <typename Read>
void ForEachSlot(const BlockView& block, const Read& read) {
  size_t used = 0;
  for (uint32_t i = 0; i < block.header.positions; ++i) {
    for (size_t slot = 0; slot < block.counts[i]; ++slot) read(used++, i, slot);
  }
}

float LogProb(const BlockView& block, size_t used, uint32_t position) {
  float value;
  if (!block.header.fixed()) {
    std::memcpy(&value, block.log_probs + used * sizeof value, sizeof value);
    return value;
  }
  uint16_t code;
  std::memcpy(&code, block.log_probs + used * sizeof code, sizeof code);
  return Fixed16(code, block.multipliers[position]);
}

}  // namespace

void ReadBlockIds(const BlockView& block, std::span<int32_t> sampled_ids, std::span<int32_t> ids) {
  const size_t width = block.header.id_bytes;
  for (uint32_t i = 0; i < block.header.positions; ++i) {
    sampled_ids[i] = BlockId(block.sampled_ids, i, width);
  }
  for (uint32_t i = 0; i < block.header.used_slots; ++i) ids[i] = BlockId(block.ids, i, width);
}

void ReadBlockIdRows(const BlockView& block, size_t slots, std::span<int32_t> ids) {
  std::ranges::fill(ids, -1);
  ForEachSlot(block, [&](size_t used, uint32_t position, size_t slot) {
    ids[position * slots + slot] = BlockId(block.ids, used, block.header.id_bytes);
  });
}

void ReadBlockLogProbRows(const BlockView& block, size_t slots, std::span<float> log_probs) {
  std::ranges::fill(log_probs, kMinusInfinity);
  ForEachSlot(block, [&](size_t used, uint32_t position, size_t slot) {
    log_probs[position * slots + slot] = LogProb(block, used, position);
  });
}

}  // namespace sis
