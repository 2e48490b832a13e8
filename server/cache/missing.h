// Which positions have no record, and why.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace sis {

// The numbers are those of v1::MissingReason, and stand in stores.
enum class MissingReason : uint8_t {
  kNeverArrived = 1,
  kEvicted = 2,  // to make room, also by a store that does so
  kExpired = 3,
  kStale = 4,
  kReleased = 5,
  kStoreDown = 6,
  kCorrupt = 7,         // not as it was written; or lost by a store that forgets nothing
  kInvalidLogProb = 8,  // sent as a gap
};

inline constexpr std::array kMissingReasons = {
    MissingReason::kNeverArrived, MissingReason::kEvicted,       MissingReason::kExpired,
    MissingReason::kStale,        MissingReason::kReleased,      MissingReason::kStoreDown,
    MissingReason::kCorrupt,      MissingReason::kInvalidLogProb};

// "never_arrived" and so on, for messages and labels of metrics.
constexpr std::string_view Name(MissingReason reason) {
  constexpr std::string_view kNames[] = {"never_arrived", "evicted",         "expired",
                                         "stale",         "released",        "store_down",
                                         "corrupt",       "invalid_log_prob"};
  return kNames[static_cast<int>(reason) - 1];
}

// Positions by reason; one more than there are reasons, whose numbers begin with 1.
using MissingCounts = std::array<int64_t, kMissingReasons.size() + 1>;

// A range of consecutive missing positions of one slice.
struct Missing {
  uint32_t first_position;
  uint32_t count;
  MissingReason reason;
};

// Adds a range that lies behind those there, as part of the last one if it continues it.
inline void AddMissing(std::vector<Missing>& ranges, const Missing& range) {
  if (!ranges.empty() && ranges.back().reason == range.reason &&
      ranges.back().first_position + ranges.back().count == range.first_position) {
    ranges.back().count += range.count;
  } else {
    ranges.push_back(range);
  }
}

}  // namespace sis
