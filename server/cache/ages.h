// Ages of records: policy versions behind the current one, in classes.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

#include "kernels/numerics/sums.h"

namespace sis {

// Ages in [from, to]. The last class holds records ahead: newer than the current version.
struct AgeClass {
  uint64_t from;
  uint64_t to;
  std::string_view label;
};
inline constexpr std::array kAgeClasses = {
    AgeClass{0, 0, "0"},       AgeClass{1, 1, "1"},
    AgeClass{2, 2, "2"},       AgeClass{3, 3, "3"},
    AgeClass{4, 7, "4-7"},     AgeClass{8, 15, "8-15"},
    AgeClass{16, 31, "16-31"}, AgeClass{32, std::numeric_limits<uint64_t>::max(), "32+"},
    AgeClass{0, 0, "ahead"}};
inline constexpr size_t kAhead = kAgeClasses.size() - 1;

// Returns true if records of the class are of an older version than the current one.
constexpr bool IsBehind(size_t age_class) { return age_class != 0 && age_class != kAhead; }

// Returns the index of a record's class.
inline size_t AgeClassOf(uint64_t version, uint64_t current_version) {
  if (version > current_version) return kAhead;
  const uint64_t age = current_version - version;
  return std::ranges::find_if(kAgeClasses, [&](const AgeClass& c) { return age <= c.to; }) -
         kAgeClasses.begin();
}

// Sums over the scored positions of one class.
struct AgeSums {
  int64_t accepted = 0;
  int64_t rejected = 0;
  int64_t outside_top_k = 0;
  int64_t d = 0;               // in units of Fixed, as d_sis
  int64_t d_sis = 0;           // see Sums
  int64_t weight = 0;          // of the modified ratio, in units of CountedWeight
  int64_t weight_squared = 0;  // see CorrectionSums

  int64_t scored() const { return accepted + rejected + outside_top_k; }

  AgeSums& operator+=(const AgeSums& other) { return AddEach(other, *this); }
  friend bool operator==(const AgeSums&, const AgeSums&) = default;
};

using SumsByAge = std::array<AgeSums, kAgeClasses.size()>;

}  // namespace sis
