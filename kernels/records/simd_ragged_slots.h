// The slots of ragged pages (docs/page_format.md) of 12 bits, encoded and put in order on vectors:
// the same bits as log_prob_code.h gives slot by slot.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/records/encoding.h"

namespace sis {

// A whole group, token-major. Rows can be read to their end, but mean something up to `used` alone.
struct RowsToEncode {
  const float* log_probs;  // [16, slots]
  const int32_t* ids;      // [16, slots]
  size_t slots;
  const uint16_t* used;  // [16]: slots that can be encoded
};

// Rank by rank, of each rank the positions that use it; behind them room for 16 values, which get
// anything.
struct RaggedSlots {
  uint32_t* codes;
  uint32_t* ids;
  uint32_t* multipliers;  // [16], of the positions
  float* rounded;         // [16, slots] or null: what codes stand for, behind `used` anything
};

// False, with nothing done, on machines without vectors.
bool EncodeRaggedOnVectors(const RowsToEncode& rows, const RaggedSlots& to);

}  // namespace sis
