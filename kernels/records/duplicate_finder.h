// Finds ids that stand twice in a set.
#pragma once

#include <cstdint>
#include <span>

namespace sis {

// K is small: ids are compared in pairs, but only if a filter has seen the like before. It has 1024
// bits, so that of a hundred ids few are compared.
class DuplicateFinder {
 public:
  // True if id is among `earlier`; ids must be offered in order.
  bool Seen(int32_t id, std::span<const int32_t> earlier) {
    const uint32_t hash = (static_cast<uint32_t>(id) * 0x9E3779B1u) >> 22;
    uint64_t& word = filter_[hash / 64];
    const uint64_t bit = uint64_t{1} << (hash % 64);
    const bool maybe = (word & bit) != 0;
    word |= bit;
    if (!maybe) return false;
    for (const int32_t other : earlier) {
      if (other == id) return true;
    }
    return false;
  }

 private:
  uint64_t filter_[16] = {};
};

}  // namespace sis
