// Classes of staleness for metrics: how many policy versions a record is behind.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

#include "kernels/numerics/sums.h"

namespace sis {

// Records that are [from, to] versions behind. The last class is for records that are newer than
// the current version.
struct StalenessClass {
  uint64_t from;
  uint64_t to;
  std::string_view label;
};
inline constexpr std::array kStalenessClasses = {
    StalenessClass{0, 0, "0"},     StalenessClass{1, 1, "1"},
    StalenessClass{2, 3, "2-3"},   StalenessClass{4, 7, "4-7"},
    StalenessClass{8, 15, "8-15"}, StalenessClass{16, std::numeric_limits<uint64_t>::max(), "16+"},
    StalenessClass{0, 0, "ahead"}};
inline constexpr size_t kAhead = kStalenessClasses.size() - 1;

// Returns true if records of the class are older than the current version.
constexpr bool IsBehind(size_t staleness_class) {
  return staleness_class != 0 && staleness_class != kAhead;
}

// Returns the index of a record's class.
inline size_t StalenessClassOf(uint64_t version, uint64_t current_version) {
  if (version > current_version) return kAhead;
  const uint64_t behind = current_version - version;
  return std::ranges::find_if(kStalenessClasses,
                              [&](const StalenessClass& c) { return behind <= c.to; }) -
         kStalenessClasses.begin();
}

// Scored positions by decision.
struct DecisionCounts {
  int64_t accepted = 0;
  int64_t rejected = 0;
  int64_t outside_top_k = 0;

  DecisionCounts& operator+=(const DecisionCounts& other) { return AddEach(other, *this); }
  friend bool operator==(const DecisionCounts&, const DecisionCounts&) = default;
};

using StalenessCounts = std::array<DecisionCounts, kStalenessClasses.size()>;

}  // namespace sis
