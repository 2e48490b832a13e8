#include "kernels/block/digest.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <algorithm>
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

// The bytes of one position in all sections, concatenated.
class Position {
 public:
  Position() = default;

  void Gather(const BlockView& block, uint32_t i, size_t slot) {
    const BlockHeader& header = block.header;
    const size_t log_prob_bytes = header.fixed() ? sizeof(uint16_t) : sizeof(float);
    const size_t id_bytes = header.id_bytes, used = block.counts[i];
    const std::byte* const end = block.bytes.data() + block.bytes.size();
    size_ = 0;
    AppendSlots(block.log_probs + slot * log_prob_bytes, used * log_prob_bytes, end);
    if (header.fixed()) Append(block.multipliers + i, 1);
    Append(block.ranks + i, 1);
    Append(block.sampled_log_probs + i, sizeof(float));
    Append(block.counts + i, 1);
    Append(block.sampled_ids + i * id_bytes, id_bytes);
    AppendSlots(block.ids + slot * id_bytes, used * id_bytes, end);
    std::memset(bytes_.data() + size_, 0, 8);
  }
  // Returns the bytes, padded with zeros to a multiple of 8.
  std::span<const std::byte> bytes() const { return std::span(bytes_).first((size_ + 7) / 8 * 8); }

 private:
  static constexpr size_t kAtOnce = 32;

  void Append(const void* from, size_t bytes) {
    std::memcpy(bytes_.data() + size_, from, bytes);
    size_ += bytes;
  }
  // May copy bytes after `from` + `bytes` too, up to the block's end.
  void AppendSlots(const std::byte* from, size_t bytes, const std::byte* end) {
    if (bytes + kAtOnce > static_cast<size_t>(end - from)) return Append(from, bytes);
    for (size_t i = 0; i < bytes; i += kAtOnce) {
      std::memcpy(bytes_.data() + size_ + i, from + i, kAtOnce);
    }
    size_ += bytes;
  }

  size_t size_;
  std::array<std::byte, kMaxBlockSlots * 2 * sizeof(float) + 2 * kAtOnce> bytes_;
};

#ifdef __x86_64__
__attribute__((target("sse4.2"))) uint32_t CrcByInstruction(std::span<const std::byte> bytes) {
  uint64_t state = UINT32_MAX;
  for (size_t i = 0; i < bytes.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + i, sizeof word);
    state = _mm_crc32_u64(state, word);
  }
  return ~static_cast<uint32_t>(state);
}
#endif

// Faster than ExtendCrc32c, whose call costs more than a position's few bytes.
uint32_t Crc(std::span<const std::byte> bytes) {
#ifdef __x86_64__
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) return CrcByInstruction(bytes);
#endif
  return ExtendCrc32c(0, bytes);
}

}  // namespace

uint64_t DigestOf(const BlockView& block, uint32_t first, uint32_t count) {
  size_t slot = std::accumulate(block.counts, block.counts + first, size_t{0});
  uint64_t sum = 0;
  // A processor stalls when it reads bytes in one piece right after it wrote them in several. So
  // eight positions are written before they are read.
  std::array<Position, 8> some;
  for (uint32_t begin = first; begin < first + count; begin += some.size()) {
    const uint32_t n = std::min<uint32_t>(some.size(), first + count - begin);
    for (uint32_t i = 0; i < n; ++i) {
      some[i].Gather(block, begin + i, slot);
      slot += block.counts[begin + i];
    }
    for (uint32_t i = 0; i < n; ++i) {
      sum += Mix(uint64_t{block.header.first_position + begin + i} << 32 | Crc(some[i].bytes()));
    }
  }
  return sum;
}

}  // namespace sis
