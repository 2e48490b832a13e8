#include "kernels/records/record_digest.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <bit>
#include <cstdint>
#include <cstring>

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

uint64_t Addend(uint32_t position, uint32_t crc) { return Mix((uint64_t{position} << 32) | crc); }

#ifdef __x86_64__
// The instruction takes three cycles to give the state that the next one needs, but another can
// start in each: as many rows are worked on side by side.
constexpr size_t kSideBySide = 4;

// Extends the states by [kSideBySide, count] words of 32 bits.
__attribute__((target("sse4.2"))) inline __attribute__((always_inline)) void ExtendEach(
    const void* rows, size_t count, uint64_t (&states)[kSideBySide]) {
  const auto* row = static_cast<const char*>(rows);
  const size_t row_bytes = count * sizeof(uint32_t);
  size_t byte = 0;
  for (; byte + 8 <= row_bytes; byte += 8) {
#pragma GCC unroll 4
    for (size_t i = 0; i < kSideBySide; ++i) {
      uint64_t word;
      std::memcpy(&word, row + i * row_bytes + byte, sizeof word);
      states[i] = _mm_crc32_u64(states[i], word);
    }
  }
  if (byte == row_bytes) return;
#pragma GCC unroll 4
  for (size_t i = 0; i < kSideBySide; ++i) {
    uint32_t word;
    std::memcpy(&word, row + i * row_bytes + byte, sizeof word);
    states[i] = _mm_crc32_u32(static_cast<uint32_t>(states[i]), word);
  }
}

__attribute__((target("sse4.2"))) uint64_t SumOfFours(uint32_t first_position,
                                                      const RecordView& rows, size_t slots,
                                                      size_t count) {
  uint64_t sum = 0;
  for (size_t row = 0; row < count; row += kSideBySide) {
    uint64_t states[kSideBySide];
#pragma GCC unroll 4
    for (size_t i = 0; i < kSideBySide; ++i) {
      const uint64_t sampled = static_cast<uint32_t>(rows.sampled_ids[row + i]) |
                               uint64_t{std::bit_cast<uint32_t>(rows.sampled_log_probs[row + i])}
                                   << 32;
      states[i] = _mm_crc32_u64(UINT32_MAX, sampled);
    }
    ExtendEach(rows.ids.data() + row * slots, slots, states);
    ExtendEach(rows.log_probs.data() + row * slots, slots, states);
    for (size_t i = 0; i < kSideBySide; ++i) {
      sum += Addend(static_cast<uint32_t>(first_position + row + i),
                    ~static_cast<uint32_t>(states[i]));
    }
  }
  return sum;
}
#endif

}  // namespace

uint64_t PositionDigest(uint32_t position, int32_t sampled_id, float sampled_log_prob,
                        std::span<const int32_t> ids, std::span<const float> log_probs) {
  // One word of 64 bits is checked as fast as one of 32.
  const uint32_t sampled[] = {static_cast<uint32_t>(sampled_id),
                              std::bit_cast<uint32_t>(sampled_log_prob)};
  uint32_t crc = ExtendCrc32c(0, std::as_bytes(std::span(sampled)));
  crc = ExtendCrc32c(crc, std::as_bytes(ids));
  crc = ExtendCrc32c(crc, std::as_bytes(log_probs));
  return Addend(position, crc);
}

uint64_t DigestOfRows(uint32_t first_position, const RecordView& rows) {
  const size_t count = rows.sampled_ids.size();
  if (count == 0) return 0;
  const size_t slots = rows.ids.size() / count;
  uint64_t sum = 0;
  size_t row = 0;
#ifdef __x86_64__
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) {
    row = count / kSideBySide * kSideBySide;
    sum = SumOfFours(first_position, rows, slots, row);
  }
#endif
  for (; row < count; ++row) {
    sum += PositionDigest(static_cast<uint32_t>(first_position + row), rows.sampled_ids[row],
                          rows.sampled_log_probs[row], rows.ids.subspan(row * slots, slots),
                          rows.log_probs.subspan(row * slots, slots));
  }
  return sum;
}

}  // namespace sis
