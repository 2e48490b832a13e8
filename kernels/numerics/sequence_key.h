// The 64-bit Philox key of a sequence: FNV-1a over run seed, attempt and id (docs/numerics.md,
// section 6).
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/numerics/fnv1a.h"

namespace sis {

inline uint64_t SequenceKey(uint64_t run_seed, uint32_t attempt, std::string_view id) {
  uint64_t hash = kFnv1aOffset;
  for (int shift = 0; shift < 64; shift += 8) {
    hash = ExtendFnv1a(hash, static_cast<uint8_t>(run_seed >> shift));
  }
  for (int shift = 0; shift < 32; shift += 8) {
    hash = ExtendFnv1a(hash, static_cast<uint8_t>(attempt >> shift));
  }
  return ExtendFnv1a(hash, id);
}

}  // namespace sis
