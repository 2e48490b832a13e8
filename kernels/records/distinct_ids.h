// Whether the ids of whole sets differ, set after set, in time linear in their size.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace sis {

// Every id has a place in a table. An id whose place was taken in the same set is compared with all
// before it: of a hundred that differ, on average less than one is.
class DistinctIds {
 public:
  // Whether none stands twice, but for -1.
  bool AllDiffer(std::span<const int32_t> ids) {
    // What a set took 256 sets ago costs comparisons, but changes nothing.
    const uint8_t set = ++set_;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (TakePlace(ids[i], set) && StandsTwice(ids.first(i), ids[i])) return false;
    }
    return true;
  }

 private:
  static constexpr int kPlaceBits = 13;  // the table stays in a first-level cache

  // True if it was taken in this set.
  bool TakePlace(int32_t id, uint8_t set) {
    uint8_t& last_set = last_sets_[(static_cast<uint32_t>(id) * 0x9E3779B1u) >> (32 - kPlaceBits)];
    const bool taken = last_set == set;
    last_set = set;
    return taken;
  }
  static bool StandsTwice(std::span<const int32_t> earlier, int32_t id) {
    return id != -1 && std::find(earlier.begin(), earlier.end(), id) != earlier.end();
  }

  uint8_t set_ = 0;
  std::array<uint8_t, size_t{1} << kPlaceBits> last_sets_ = {};
};

}  // namespace sis
