// How far behind the current policy versions are, in classes for metrics.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

#include "kernels/numerics/sums.h"

namespace sis {

// Versions behind: [from, to].
struct StalenessClass {
  uint64_t from;
  uint64_t to;
  std::string_view label;
};
inline constexpr std::array kStalenessClasses = {
    StalenessClass{0, 0, "0"},     StalenessClass{1, 1, "1"},
    StalenessClass{2, 3, "2-3"},   StalenessClass{4, 7, "4-7"},
    StalenessClass{8, 15, "8-15"}, StalenessClass{16, std::numeric_limits<uint64_t>::max(), "16+"}};

// The index of a record's class. A version above the current one is not behind.
inline size_t StalenessClassOf(uint64_t version, uint64_t current_version) {
  const uint64_t behind = version < current_version ? current_version - version : 0;
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
