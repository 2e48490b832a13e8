// Finds ids that stand twice in a set.
#pragma once

#include <cstdint>
#include <span>

namespace sis {

// K is small: ids are compared in pairs, but only if a 64-bit filter has seen the like before.
class DuplicateFinder {
 public:
  // True if id is among `earlier`; ids must be offered in order.
  bool Seen(int32_t id, std::span<const int32_t> earlier) {
    const uint64_t bit = uint64_t{1} << ((static_cast<uint32_t>(id) * 0x9E3779B1u) >> 26);
    const bool maybe = (filter_ & bit) != 0;
    filter_ |= bit;
    if (!maybe) return false;
    for (const int32_t other : earlier) {
      if (other == id) return true;
    }
    return false;
  }

 private:
  uint64_t filter_ = 0;
};

}  // namespace sis
