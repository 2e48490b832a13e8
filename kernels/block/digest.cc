#include "kernels/block/digest.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <array>
#include <bit>
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

// CRC-32C of words of 8 bytes, the low byte first.
#ifdef __x86_64__
#define SIS_TARGET_SSE42 __attribute__((target("sse4.2")))
class CrcByInstruction {
 public:
  SIS_TARGET_SSE42 void Add(uint64_t word) { state_ = _mm_crc32_u64(state_, word); }
  uint32_t value() const { return ~static_cast<uint32_t>(state_); }

 private:
  uint64_t state_ = UINT32_MAX;
};
#endif
class CrcByLibrary {
 public:
  void Add(uint64_t word) { words_[count_++] = word; }
  uint32_t value() const { return ExtendCrc32c(0, std::as_bytes(std::span(words_).first(count_))); }

 private:
  size_t count_ = 0;
  std::array<uint64_t, kMaxBlockSlots + 4> words_;
};

// Adds the bytes, and zeros up to a multiple of 8. May read other bytes before `end`.
template <class Crc>
[[gnu::always_inline]] inline void AddBytes(const std::byte* from, size_t bytes,
                                            const std::byte* end, Crc& crc) {
  uint64_t word;
  for (; bytes >= sizeof word; from += sizeof word, bytes -= sizeof word) {
    std::memcpy(&word, from, sizeof word);
    crc.Add(word);
  }
  if (bytes == 0) return;
  word = 0;
  if (end - from >= static_cast<ptrdiff_t>(sizeof word)) {
    std::memcpy(&word, from, sizeof word);
    word &= ~uint64_t{0} >> (64 - 8 * bytes);
  } else {
    std::memcpy(&word, from, bytes);
  }
  crc.Add(word);
}

template <class Crc>
[[gnu::always_inline]] inline uint64_t Digest(const BlockView& block, uint32_t first,
                                              uint32_t count) {
  const BlockHeader& header = block.header;
  const size_t log_prob_bytes = header.fixed() ? sizeof(uint16_t) : sizeof(float);
  const std::byte* const end = block.bytes.data() + block.bytes.size();
  size_t slot = std::accumulate(block.counts, block.counts + first, size_t{0});
  uint64_t sum = 0;
  for (uint32_t i = first; i < first + count; ++i) {
    const size_t used = block.counts[i];
    const uint64_t multiplier = header.fixed() ? block.multipliers[i] : 0;
    Crc crc;
    AddBytes(block.log_probs + slot * log_prob_bytes, used * log_prob_bytes, end, crc);
    crc.Add(uint64_t{std::bit_cast<uint32_t>(block.sampled_log_probs[i])} << 32 | used << 16 |
            uint64_t{block.ranks[i]} << 8 | multiplier);
    AddBytes(block.sampled_ids + i * header.id_bytes, header.id_bytes, end, crc);
    AddBytes(block.ids + slot * header.id_bytes, used * header.id_bytes, end, crc);
    sum += Mix(uint64_t{header.first_position + i} << 32 | crc.value());
    slot += used;
  }
  return sum;
}

#ifdef __x86_64__
SIS_TARGET_SSE42 uint64_t DigestByInstruction(const BlockView& block, uint32_t first,
                                              uint32_t count) {
  return Digest<CrcByInstruction>(block, first, count);
}
#endif

}  // namespace

uint64_t DigestOf(const BlockView& block, uint32_t first, uint32_t count) {
#ifdef __x86_64__
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) return DigestByInstruction(block, first, count);
#endif
  return Digest<CrcByLibrary>(block, first, count);
}

}  // namespace sis
