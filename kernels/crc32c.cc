#include "kernels/crc32c.h"

#include <array>
#include <cstring>

namespace sis {
namespace {

constexpr std::array<uint32_t, 256> MakeTable() {
  constexpr uint32_t kReflectedPolynomial = 0x82F63B78;
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) {
      value = (value >> 1) ^ ((value & 1) != 0 ? kReflectedPolynomial : 0);
    }
    table[byte] = value;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = MakeTable();

#ifdef __x86_64__
__attribute__((target("sse4.2"))) uint32_t ExtendWithInstruction(uint32_t crc,
                                                                 std::span<const std::byte> bytes) {
  uint64_t state = ~crc;
  const std::byte* next = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; left -= 8, next += 8) {
    uint64_t word;
    std::memcpy(&word, next, sizeof word);
    state = __builtin_ia32_crc32di(state, word);
  }
  auto narrow = static_cast<uint32_t>(state);
  for (; left > 0; --left, ++next) {
    narrow = __builtin_ia32_crc32qi(narrow, static_cast<uint8_t>(*next));
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
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) return ExtendWithInstruction(crc, bytes);
#endif
  return ExtendCrc32cPortable(crc, bytes);
}

}  // namespace sis
