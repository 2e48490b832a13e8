// Recorded positions, as they come off the wire.
#pragma once

#include <cstdint>
#include <span>

namespace sis {

inline constexpr int kMaxTopK = 512;
// The rank of a sampled token that is not in the recorded set. Its low byte stands for it where
// ranks are bytes (kernels/records/rank_span.h).
inline constexpr uint16_t kRankOutside = 0xffff;

// T recorded positions, row-major.
struct RecordView {
  std::span<const int32_t> sampled_ids;      // [T]
  std::span<const float> sampled_log_probs;  // [T]
  std::span<const int32_t> ids;              // [T, K]
  std::span<const float> log_probs;          // [T, K]
  // [T], how many slots are used; what stands in the others means nothing. Empty: those hold -1 and
  // -inf.
  std::span<const uint16_t> counts = {};
};

}  // namespace sis
