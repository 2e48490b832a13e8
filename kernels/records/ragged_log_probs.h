// Recorded log-probs of consecutive positions, of each only the slots that it uses, as pages of
// version 2 have them (docs/page_format.md): group by group of 16 positions, in a group rank by
// rank, in a rank the positions that have that slot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/numerics/host_device.h"
#include "kernels/records/encoding.h"

namespace sis {

struct RaggedLogProbs {
  // The used slots of each position in each lane of the groups, at most K; 0 in lanes of none.
  std::span<const uint16_t> counts = {};
  // [groups + 1]: which of the codes is the first of each group, and how many there are.
  std::span<const uint32_t> begins = {};
  // Of kFixed12, kMultiplierBits each, packed one after the other; lanes of no position at the end
  // may be left out.
  std::span<const std::byte> multipliers = {};
  std::span<const std::byte> codes = {};  // LogProbBits each, packed one after the other
  LogProbEncoding encoding = LogProbEncoding::kFloat32;
  uint8_t first_lane = 0;  // the lane of group 0 that holds the first position

  bool empty() const { return counts.empty(); }
};

// Which of its group's slots a used one is, given the counts of the group.
SIS_HOST_DEVICE inline uint32_t RaggedSlot(const uint16_t* counts, size_t lane, uint32_t rank) {
  uint32_t before = 0;
  for (size_t other = 0; other < kGroupPositions; ++other) {
    const uint32_t count = counts[other];
    before += count < rank ? count : rank;
    before += other < lane && count > rank ? 1 : 0;
  }
  return before;
}

}  // namespace sis
