#include "kernels/record_digest.h"

#include <bit>
#include <cstdint>

#include "kernels/crc32c.h"

namespace sis {
namespace {

// The finaliser of splitmix64.
uint64_t Mix(uint64_t z) {
  z += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

}  // namespace

uint64_t PositionDigest(uint32_t position, int32_t sampled_id, float sampled_log_prob,
                        std::span<const int32_t> ids, std::span<const float> log_probs) {
  // One word of 64 bits is checked as fast as one of 32.
  const uint32_t sampled[] = {static_cast<uint32_t>(sampled_id),
                              std::bit_cast<uint32_t>(sampled_log_prob)};
  uint32_t crc = ExtendCrc32c(0, std::as_bytes(std::span(sampled)));
  crc = ExtendCrc32c(crc, std::as_bytes(ids));
  crc = ExtendCrc32c(crc, std::as_bytes(log_probs));
  return Mix((uint64_t{position} << 32) | crc);
}

}  // namespace sis
