#include "kernels/block/digest.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <array>
#include <cstring>
#include <numeric>
#include <span>

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

uint64_t Addend(uint32_t position, uint32_t crc) { return Mix(uint64_t{position} << 32 | crc); }

// The bytes of a position in each section, of which only fixed16 has multipliers.
using Parts = std::array<std::span<const std::byte>, 7>;
Parts PartsOf(const BlockView& block, size_t i, size_t slot) {
  const BlockHeader& header = block.header;
  const size_t log_prob_bytes = header.fixed() ? sizeof(uint16_t) : sizeof(float);
  const size_t id_bytes = header.id_bytes, used = block.counts[i];
  const auto bytes = [](const auto* values, size_t index, size_t count) {
    return std::as_bytes(std::span(values + index, count));
  };
  return {bytes(block.log_probs, slot * log_prob_bytes, used * log_prob_bytes),
          bytes(block.multipliers, i, header.fixed() ? 1 : 0),
          bytes(block.ranks, i, 1),
          bytes(block.sampled_log_probs, i, 1),
          bytes(block.counts, i, 1),
          bytes(block.sampled_ids, i * id_bytes, id_bytes),
          bytes(block.ids, slot * id_bytes, used * id_bytes)};
}

#ifdef __x86_64__
template <typename T>
inline T Load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

__attribute__((target("sse4.2"))) inline __attribute__((always_inline)) uint64_t Extend(
    uint64_t state, std::span<const std::byte> bytes) {
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; at += 8, left -= 8) state = _mm_crc32_u64(state, Load<uint64_t>(at));
  auto rest = static_cast<uint32_t>(state);
  if ((left & 4) != 0) rest = _mm_crc32_u32(rest, Load<uint32_t>(at)), at += 4;
  if ((left & 2) != 0) rest = _mm_crc32_u16(rest, Load<uint16_t>(at)), at += 2;
  if ((left & 1) != 0) rest = _mm_crc32_u8(rest, Load<uint8_t>(at));
  return rest;
}

__attribute__((target("sse4.2"))) uint64_t SumByInstruction(const BlockView& block, uint32_t first,
                                                            uint32_t count, size_t slot) {
  uint64_t sum = 0;
  for (uint32_t i = first; i < first + count; ++i) {
    uint64_t state = UINT32_MAX;
    for (const auto& part : PartsOf(block, i, slot)) state = Extend(state, part);
    sum += Addend(block.header.first_position + i, ~static_cast<uint32_t>(state));
    slot += block.counts[i];
  }
  return sum;
}
#endif

uint64_t Sum(const BlockView& block, uint32_t first, uint32_t count, size_t slot) {
#ifdef __x86_64__
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) return SumByInstruction(block, first, count, slot);
#endif
  uint64_t sum = 0;
  for (uint32_t i = first; i < first + count; ++i) {
    uint32_t crc = 0;
    for (const auto& part : PartsOf(block, i, slot)) crc = ExtendCrc32c(crc, part);
    sum += Addend(block.header.first_position + i, crc);
    slot += block.counts[i];
  }
  return sum;
}

}  // namespace

uint64_t DigestOf(const BlockView& block, uint32_t first, uint32_t count) {
  return Sum(block, first, count, std::accumulate(block.counts, block.counts + first, size_t{0}));
}

}  // namespace sis
