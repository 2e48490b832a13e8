// The 64-bit hash FNV-1a, part by part.
#pragma once

#include <cstdint>
#include <string_view>

namespace sis {

inline constexpr uint64_t kFnv1aOffset = 0xcbf29ce484222325;

constexpr uint64_t ExtendFnv1a(uint64_t hash, uint8_t byte) {
  return (hash ^ byte) * 0x100000001b3;
}

constexpr uint64_t ExtendFnv1a(uint64_t hash, std::string_view bytes) {
  for (const char c : bytes) hash = ExtendFnv1a(hash, static_cast<uint8_t>(c));
  return hash;
}

}  // namespace sis
