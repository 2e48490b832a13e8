// Checks in tests that a writer could have written a block.
#pragma once

#include <cstddef>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/block/block.h"
#include "kernels/block/pack.h"
#include "kernels/block/read.h"

namespace sis {

// Returns the bytes that PackBlock writes for the records of a valid block: the block's own bytes,
// but with the fewest bytes for ids. Returns nullopt if PackBlock can't keep the order of ids
// because only rounding allows it. Throws if the records are not valid.
inline std::optional<std::vector<std::byte>> PackedAgain(const BlockView& block, double mass = 0) {
  const BlockHeader& header = block.header;
  const size_t positions = header.positions, slots = header.slots;
  std::vector<int32_t> sampled_ids(positions), used_ids(header.used_slots), ids(positions * slots);
  std::vector<float> log_probs(ids.size());
  std::vector<float> sampled(block.sampled_log_probs, block.sampled_log_probs + positions);
  ReadBlockIds(block, sampled_ids, used_ids);
  ReadBlockIdRows(block, slots, ids);
  ReadBlockLogProbRows(block, slots, log_probs);
  for (size_t i = 0; i < positions; ++i) {
    // Rounding makes the slot's value smaller than the sampled token's log-prob.
    if (block.ranks[i] != kBlockRankOutside) sampled[i] = log_probs[i * slots + block.ranks[i]];
    for (size_t slot = 1; slot < block.counts[i]; ++slot) {
      const size_t at = i * slots + slot;
      if (log_probs[at] == log_probs[at - 1] && ids[at] < ids[at - 1]) {
        if (!header.fixed()) throw std::invalid_argument("ties of float32 log-probs go by id");
        return std::nullopt;
      }
    }
  }
  auto packed = PackBlock({sampled_ids, sampled, ids, log_probs},
                          {.encoding = header.encoding,
                           .slots = header.slots,
                           .vocabulary_size = static_cast<int32_t>(header.vocabulary_size),
                           .first_position = header.first_position,
                           .policy_version = header.policy_version,
                           .mass = mass});
  if (!packed.ok()) throw std::invalid_argument(std::string(packed.status().message()));
  std::memcpy(packed->data() + BlockLayout(header).sampled_log_probs, block.sampled_log_probs,
              positions * sizeof(float));
  SealBlock(*packed);
  return *std::move(packed);
}

}  // namespace sis
