// Philox4x32-10, the counter-based generator of Salmon et al. (SC 2011), and our use of its counter
// (docs/numerics.md, section 6).
#pragma once

#include <array>
#include <cstdint>

#include "kernels/numerics/host_device.h"

namespace sis {

struct PhiloxBlock {
  uint32_t word[4];
};

SIS_HOST_DEVICE inline PhiloxBlock Philox4x32(PhiloxBlock counter, uint32_t key0, uint32_t key1) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53;
  constexpr uint64_t kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9;
  constexpr uint32_t kWeyl1 = 0xBB67AE85;
  uint32_t(&c)[4] = counter.word;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiplier0 * c[0];
    const uint64_t product1 = kMultiplier1 * c[2];
    const uint32_t c0 = static_cast<uint32_t>(product1 >> 32) ^ c[1] ^ key0;
    const uint32_t c2 = static_cast<uint32_t>(product0 >> 32) ^ c[3] ^ key1;
    c[1] = static_cast<uint32_t>(product1);
    c[3] = static_cast<uint32_t>(product0);
    c[0] = c0;
    c[2] = c2;
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return counter;
}

// Returns the uniforms of positions 4 * quad to 4 * quad + 3 of one sequence, for one draw.
SIS_HOST_DEVICE inline PhiloxBlock AcceptanceUniforms(uint64_t sequence_key, uint32_t quad,
                                                      uint64_t draw) {
  constexpr uint32_t kAcceptanceDomain = 1;
  return Philox4x32(
      {{quad, static_cast<uint32_t>(draw), static_cast<uint32_t>(draw >> 32), kAcceptanceDomain}},
      static_cast<uint32_t>(sequence_key), static_cast<uint32_t>(sequence_key >> 32));
}

}  // namespace sis
