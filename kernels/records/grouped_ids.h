// Recorded ids as they lie in pages: packed, in groups of 16 positions, rank by rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/records/encoding.h"
#include "kernels/records/packed_row.h"
#include "kernels/records/packed_values.h"

namespace sis {

// Group after group, each of 1 + K rows (docs/page_format.md): that of the sampled ids, then a row
// per rank, which holds that rank of the group's positions, one a lane. In unused slots stands 0.
struct GroupedIds {
  // Whole groups; what lies in lanes of no position doesn't matter.
  std::span<const std::byte> rows = {};
  int bits = 1;            // of an id
  uint8_t first_lane = 0;  // the lane of group 0 that holds the first position

  bool empty() const { return rows.empty(); }
  size_t GroupBytes(size_t slots) const { return (1 + slots) * PackedRowBytes(bits); }
  // Of a position that counts from lane 0 of the first group on.
  uint32_t At(size_t place, size_t rank, size_t slots) const {
    const size_t row_bytes = PackedRowBytes(bits);
    const size_t row = place / kGroupPositions * GroupBytes(slots) + (1 + rank) * row_bytes;
    return PackedValues(rows.subspan(row, row_bytes), bits).At(place % kGroupPositions);
  }
};

}  // namespace sis
