#include "kernels/numerics/crc32c.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <array>
#include <cstring>

namespace sis {
namespace {

// In reflected bits, modulo the polynomial.
constexpr uint32_t TimesX(uint32_t value) {
  constexpr uint32_t kReflectedPolynomial = 0x82F63B78;
  return (value >> 1) ^ ((value & 1) != 0 ? kReflectedPolynomial : 0);
}

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = TimesX(value);
    table[byte] = value;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = MakeTable();

#ifdef __x86_64__
// The instruction takes three cycles to give the state that the next one needs, but another can
// start in each: three parts of the bytes are worked on side by side.
constexpr size_t kLongPart = 1024;  // bytes
constexpr size_t kShortPart = 128;

// x^exponent modulo the polynomial, in reflected bits.
constexpr uint32_t PowerOfX(size_t exponent) {
  uint32_t power = 0x80000000;
  for (; exponent > 0; --exponent) power = TimesX(power);
  return power;
}

uint64_t LoadWord(const std::byte* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

// The state after kZeros bytes of zeros: state * x^(8 kZeros). The product of two reflected
// 32-bit polynomials is short of a factor x^-1 in 64 bits, and the instruction multiplies by x^32.
template <size_t kZeros>
__attribute__((target("sse4.2,pclmul"))) uint64_t AfterZeros(uint64_t state) {
  constexpr uint32_t kFactor = PowerOfX(8 * kZeros - 33);
  const __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<int64_t>(state)),
                                               _mm_cvtsi32_si128(static_cast<int>(kFactor)), 0);
  return _mm_crc32_u64(0, static_cast<uint64_t>(_mm_cvtsi128_si64(product)));
}

// Takes triples of parts off the front of `bytes`, as many as there are.
template <size_t kPart>
__attribute__((target("sse4.2,pclmul"))) uint64_t ExtendByTriples(
    uint64_t state, std::span<const std::byte>& bytes) {
  for (; bytes.size() >= 3 * kPart; bytes = bytes.subspan(3 * kPart)) {
    const std::byte* next = bytes.data();
    uint64_t second = 0;
    uint64_t third = 0;
    for (size_t i = 0; i < kPart; i += 8) {
      state = _mm_crc32_u64(state, LoadWord(next + i));
      second = _mm_crc32_u64(second, LoadWord(next + kPart + i));
      third = _mm_crc32_u64(third, LoadWord(next + 2 * kPart + i));
    }
    state = AfterZeros<2 * kPart>(state) ^ AfterZeros<kPart>(second) ^ third;
  }
  return state;
}

__attribute__((target("sse4.2,pclmul"))) uint32_t ExtendWithInstruction(
    uint32_t crc, std::span<const std::byte> bytes) {
  uint64_t state = ~crc;
  if (bytes.size() >= 3 * kShortPart) {
    state = ExtendByTriples<kLongPart>(state, bytes);
    state = ExtendByTriples<kShortPart>(state, bytes);
  }
  const std::byte* next = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; left -= 8, next += 8) state = _mm_crc32_u64(state, LoadWord(next));
  auto narrow = static_cast<uint32_t>(state);
  if (left >= 4) {
    uint32_t word;
    std::memcpy(&word, next, sizeof word);
    narrow = _mm_crc32_u32(narrow, word);
    left -= 4;
    next += 4;
  }
  for (; left > 0; --left, ++next) {
    narrow = _mm_crc32_u8(narrow, static_cast<uint8_t>(*next));
  }
  return ~narrow;
}
#endif

}  // namespace

uint32_t ExtendCrc32cPortable(uint32_t crc, std::span<const std::byte> bytes) {
  uint32_t state = ~crc;
  for (const std::byte byte : bytes) {
    state = (state >> 8) ^ kTable[(state ^ static_cast<uint8_t>(byte)) & 0xFF];
  }
  return ~state;
}

uint32_t ExtendCrc32c(uint32_t crc, std::span<const std::byte> bytes) {
#ifdef __x86_64__
  static const bool has_instructions =
      __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
  if (has_instructions) return ExtendWithInstruction(crc, bytes);
#endif
  return ExtendCrc32cPortable(crc, bytes);
}

}  // namespace sis
