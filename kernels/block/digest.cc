#include "kernels/block/digest.h"

#include <array>
#include <cstring>
#include <numeric>

#include "kernels/numerics/crc32c.h"

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

uint64_t DigestOf(const BlockView& block, uint32_t first, uint32_t count) {
  const BlockHeader& header = block.header;
  const size_t log_prob_bytes = header.fixed() ? sizeof(uint16_t) : sizeof(float);
  size_t slot = std::accumulate(block.counts, block.counts + first, size_t{0});
  uint64_t sum = 0;
  for (uint32_t i = first; i < first + count; ++i) {
    // One checksum of few bytes takes less time than seven of fewer.
    std::array<std::byte, kMaxBlockSlots * 2 * sizeof(float) + 16> bytes;
    size_t size = 0;
    const auto append = [&](const void* section, size_t index, size_t width, size_t values) {
      std::memcpy(bytes.data() + size, static_cast<const std::byte*>(section) + index * width,
                  width * values);
      size += width * values;
    };
    const size_t used = block.counts[i];
    append(block.log_probs, slot, log_prob_bytes, used);
    if (header.fixed()) append(block.multipliers, i, 1, 1);
    append(block.ranks, i, 1, 1);
    append(block.sampled_log_probs, i, sizeof(float), 1);
    append(block.counts, i, 1, 1);
    append(block.sampled_ids, i, header.id_bytes, 1);
    append(block.ids, slot, header.id_bytes, used);
    slot += used;
    const uint32_t crc = ExtendCrc32c(0, std::span(bytes).first(size));
    sum += Mix(uint64_t{header.first_position + i} << 32 | crc);
  }
  return sum;
}

}  // namespace sis
