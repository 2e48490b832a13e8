#include "server/evaluate/accept_bits.h"

#include <bit>
#include <cstdint>
#include <cstring>

namespace sis {
namespace {

static_assert(sizeof(Decision) == 1 && std::endian::native == std::endian::little);
constexpr uint64_t kOfEachByte = 0x0101010101010101;

// Eight decisions at a time: the division by cases of one at a time costs more than the decisions.
uint8_t PackEight(const Decision* decisions) {
  uint64_t bytes;
  std::memcpy(&bytes, decisions, sizeof(bytes));
  bytes ^= kOfEachByte * static_cast<uint8_t>(Decision::kAccepted);
  // The top bit of every byte that is 0 now; no sum reaches the next byte.
  constexpr uint64_t kLow = kOfEachByte * 0x7F;
  const uint64_t accepted = ~(((bytes & kLow) + kLow) | bytes | kLow);
  // Moves bit 8 i to bit 56 + i; no two products meet.
  return static_cast<uint8_t>((accepted >> 7) * 0x0102040810204080 >> 56);
}

}  // namespace

std::string PackAcceptBits(std::span<const Decision> decisions) {
  std::string bits((decisions.size() + 7) / 8, '\0');
  size_t i = 0;
  for (; i + 8 <= decisions.size(); i += 8) {
    bits[i / 8] = static_cast<char>(PackEight(decisions.data() + i));
  }
  for (; i < decisions.size(); ++i) {
    if (decisions[i] == Decision::kAccepted) {
      bits[i / 8] = static_cast<char>(bits[i / 8] | 1 << (i % 8));
    }
  }
  return bits;
}

}  // namespace sis
