// Whether the ids of whole sets differ, set after set, in time linear in their size.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace sis {

// Every id has a place in a table. Where one of a few ids finds its place taken in the same set,
// all of these are compared with those before them: of a hundred that differ, on average less than
// once.
class DistinctIds {
 public:
  // Whether none stands twice, but for -1.
  bool AllDiffer(std::span<const int32_t> ids) {
    // What a set took 256 sets ago costs comparisons, but changes nothing.
    const uint8_t set = ++set_;
    for (size_t first = 0; first < ids.size(); first += kAtOnce) {
      const std::span some = ids.subspan(first, std::min(kAtOnce, ids.size() - first));
      // Unrolled, without a branch for each.
      const bool taken =
          some.size() == kAtOnce ? TakePlaces(some.first<kAtOnce>(), set) : TakePlaces(some, set);
      if (!taken) continue;
      for (size_t i = first; i < first + some.size(); ++i) {
        if (StandsTwice(ids.first(i), ids[i])) return false;
      }
    }
    return true;
  }

 private:
  static constexpr size_t kAtOnce = 8;
  static constexpr int kPlaceBits = 13;  // the table stays in a first-level cache

  // True if one of them was taken in this set.
  template <size_t kCount>
  bool TakePlaces(std::span<const int32_t, kCount> ids, uint8_t set) {
    bool taken = false;
    for (const int32_t id : ids) {
      uint8_t& last_set =
          last_sets_[(static_cast<uint32_t>(id) * 0x9E3779B1u) >> (32 - kPlaceBits)];
      taken |= last_set == set;
      last_set = set;
    }
    return taken;
  }
  static bool StandsTwice(std::span<const int32_t> earlier, int32_t id) {
    return id != -1 && std::find(earlier.begin(), earlier.end(), id) != earlier.end();
  }

  uint8_t set_ = 0;
  std::array<uint8_t, size_t{1} << kPlaceBits> last_sets_ = {};
};

}  // namespace sis
