// The 64-bit Philox key of a sequence: FNV-1a over run seed, attempt and id (docs/numerics.md,
// section 6).
#pragma once

#include <cstdint>
#include <string_view>

namespace sis {

inline uint64_t SequenceKey(uint64_t run_seed, uint32_t attempt, std::string_view id) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&hash](uint8_t byte) { hash = (hash ^ byte) * 0x100000001b3; };
  for (int shift = 0; shift < 64; shift += 8) add(static_cast<uint8_t>(run_seed >> shift));
  for (int shift = 0; shift < 32; shift += 8) add(static_cast<uint8_t>(attempt >> shift));
  for (const char c : id) add(static_cast<uint8_t>(c));
  return hash;
}

}  // namespace sis
