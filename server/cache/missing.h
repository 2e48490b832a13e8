// Positions without a record, and the reasons.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace sis {

// The numbers equal those of v1::MissingReason, and are part of stored data.
enum class MissingReason : uint8_t {
  kNeverArrived = 1,
  kEvicted = 2,  // to make room, by the server or by the store
  kExpired = 3,
  kStale = 4,
  kReleased = 5,
  kStoreDown = 6,
  kCorrupt = 7,  // damaged, or lost by a durable store
  // Sent as a gap.
  kInvalidLogProb = 8,
  kNoLogProb = 9,
  kInfiniteLogProb = 10,
  kUnknownVersion = 11,
};

inline constexpr std::array kMissingReasons = {
    MissingReason::kNeverArrived,    MissingReason::kEvicted,        MissingReason::kExpired,
    MissingReason::kStale,           MissingReason::kReleased,       MissingReason::kStoreDown,
    MissingReason::kCorrupt,         MissingReason::kInvalidLogProb, MissingReason::kNoLogProb,
    MissingReason::kInfiniteLogProb, MissingReason::kUnknownVersion};

// Returns true for the reasons of gaps.
constexpr bool IsReasonOfGap(MissingReason reason) {
  return reason >= MissingReason::kInvalidLogProb && reason <= MissingReason::kUnknownVersion;
}

// Returns "never_arrived" and so on, for messages and metric labels.
constexpr std::string_view Name(MissingReason reason) {
  constexpr std::string_view kNames[] = {
      "never_arrived", "evicted",           "expired",        "stale",
      "released",      "store_down",        "corrupt",        "invalid_log_prob",
      "no_log_prob",   "infinite_log_prob", "unknown_version"};
  return kNames[static_cast<int>(reason) - 1];
}

// Positions by reason, indexed by the reasons' numbers, which begin with 1.
using MissingCounts = std::array<int64_t, kMissingReasons.size() + 1>;

// A range of consecutive missing positions of one slice.
struct Missing {
  uint32_t first_position;
  uint32_t count;
  MissingReason reason;
};

// Appends a range that follows all others. Merges it with the last one if it continues that.
inline void AddMissing(std::vector<Missing>& ranges, const Missing& range) {
  if (!ranges.empty() && ranges.back().reason == range.reason &&
      ranges.back().first_position + ranges.back().count == range.first_position) {
    ranges.back().count += range.count;
  } else {
    ranges.push_back(range);
  }
}

}  // namespace sis
