// Recorded positions as padded arrays.
#pragma once

#include <cstdint>
#include <span>

namespace sis {

// T recorded positions, row-major. Unused slots, at the end of a row, hold -1 and -inf.
struct RecordView {
  std::span<const int32_t> sampled_ids;      // [T]
  std::span<const float> sampled_log_probs;  // [T]
  std::span<const int32_t> ids;              // [T, K]
  std::span<const float> log_probs;          // [T, K]
};

}  // namespace sis
