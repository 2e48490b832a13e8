#include "kernels/records/record_digest.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "kernels/numerics/crc32c.h"
#include "kernels/numerics/log_prob.h"

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
// Polynomials of 32 bits modulo CRC-32C's, the lowest bit that of x^31.
constexpr uint32_t kPolynomial = 0x82f63b78;
constexpr uint32_t TimesX(uint32_t p) { return (p >> 1) ^ ((p & 1) != 0 ? kPolynomial : 0); }
constexpr uint32_t DividedByX(uint32_t p) {
  return (p >> 31) != 0 ? ((p ^ kPolynomial) << 1 | 1) : p << 1;
}

// What unused slots do to the CRC's state, without looking at them.
struct UnusedSlots {
  // x^(32 n - 33): the product with a state, reduced as the CRC of 64 bits, is the state after n
  // words of zeros.
  std::array<uint32_t, 2 * kMaxTopK + 1> powers;
  // The states after n ids of -1 and n log-probs of -inf, from state 0.
  std::array<uint32_t, kMaxTopK + 1> ids;
  std::array<uint32_t, kMaxTopK + 1> log_probs;
};
constexpr UnusedSlots kUnusedSlots = [] {
  UnusedSlots unused{};
  const auto after_word = [](uint32_t state) {
    for (int bit = 0; bit < 32; ++bit) state = TimesX(state);
    return state;
  };
  uint32_t power = uint32_t{1} << 31;
  for (int bit = 0; bit < 33; ++bit) power = DividedByX(power);
  for (uint32_t& of_zeros : unused.powers) {
    of_zeros = power;
    power = after_word(power);
  }
  for (size_t n = 0; n < kMaxTopK; ++n) {
    unused.ids[n + 1] = after_word(unused.ids[n] ^ UINT32_MAX);
    unused.log_probs[n + 1] =
        after_word(unused.log_probs[n] ^ std::bit_cast<uint32_t>(kMinusInfinity));
  }
  return unused;
}();

__attribute__((target("sse4.2,pclmul"))) inline __m128i TimesPower(uint32_t state, size_t words) {
  return _mm_clmulepi64_si128(_mm_cvtsi64_si128(state),
                              _mm_cvtsi64_si128(kUnusedSlots.powers[words]), 0);
}

// Of rows with counts.
__attribute__((target("sse4.2,pclmul"))) uint64_t SumOfCounted(uint32_t first_position,
                                                               const RecordView& rows,
                                                               size_t slots) {
  uint64_t sum = 0;
  for (size_t row = 0; row < rows.counts.size(); ++row) {
    const size_t used = rows.counts[row];
    const size_t unused = slots - used;
    const uint64_t sampled = static_cast<uint32_t>(rows.sampled_ids[row]) |
                             uint64_t{std::bit_cast<uint32_t>(rows.sampled_log_probs[row])} << 32;
    // Those of the log-probs begin anew: what comes before is added in the end.
    uint64_t ids_state = _mm_crc32_u64(UINT32_MAX, sampled);
    uint64_t log_probs_state = 0;
    const int32_t* ids = rows.ids.data() + row * slots;
    const float* log_probs = rows.log_probs.data() + row * slots;
    size_t slot = 0;
    for (; slot + 2 <= used; slot += 2) {
      uint64_t two_ids;
      uint64_t two_log_probs;
      std::memcpy(&two_ids, ids + slot, sizeof two_ids);
      std::memcpy(&two_log_probs, log_probs + slot, sizeof two_log_probs);
      ids_state = _mm_crc32_u64(ids_state, two_ids);
      log_probs_state = _mm_crc32_u64(log_probs_state, two_log_probs);
    }
    if (slot < used) {
      ids_state = _mm_crc32_u32(static_cast<uint32_t>(ids_state), static_cast<uint32_t>(ids[slot]));
      log_probs_state = _mm_crc32_u32(static_cast<uint32_t>(log_probs_state),
                                      std::bit_cast<uint32_t>(log_probs[slot]));
    }
    const __m128i product =
        _mm_xor_si128(TimesPower(static_cast<uint32_t>(ids_state), slots + unused),
                      _mm_xor_si128(TimesPower(kUnusedSlots.ids[unused], slots),
                                    TimesPower(static_cast<uint32_t>(log_probs_state), unused)));
    const auto state =
        static_cast<uint32_t>(_mm_crc32_u64(0, static_cast<uint64_t>(_mm_cvtsi128_si64(product)))) ^
        kUnusedSlots.log_probs[unused];
    sum += Addend(static_cast<uint32_t>(first_position + row), ~state);
  }
  return sum;
}

// The instruction takes three cycles, but one can start in each: so rows are worked on side by
// side.
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

uint64_t DigestOfPaddedRows(uint32_t first_position, const RecordView& rows) {
  uint64_t sum = 0;
  std::array<int32_t, kMaxTopK> ids;
  std::array<float, kMaxTopK> log_probs;
  for (size_t row = 0; row < rows.counts.size(); ++row) {
    const size_t slots = rows.ids.size() / rows.counts.size();
    const size_t used = rows.counts[row];
    std::fill(std::ranges::copy(rows.ids.subspan(row * slots, used), ids.begin()).out,
              ids.begin() + slots, -1);
    std::fill(std::ranges::copy(rows.log_probs.subspan(row * slots, used), log_probs.begin()).out,
              log_probs.begin() + slots, kMinusInfinity);
    sum += PositionDigest(static_cast<uint32_t>(first_position + row), rows.sampled_ids[row],
                          rows.sampled_log_probs[row], std::span(ids).first(slots),
                          std::span(log_probs).first(slots));
  }
  return sum;
}

uint64_t DigestOfRows(uint32_t first_position, const RecordView& rows) {
  const size_t count = rows.sampled_ids.size();
  if (count == 0) return 0;
  const size_t slots = rows.ids.size() / count;
  uint64_t sum = 0;
  size_t row = 0;
#ifdef __x86_64__
  static const bool has_product =
      __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
  if (!rows.counts.empty() && has_product) return SumOfCounted(first_position, rows, slots);
#endif
  if (!rows.counts.empty()) return DigestOfPaddedRows(first_position, rows);
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
