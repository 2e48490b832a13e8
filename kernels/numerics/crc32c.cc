#include "kernels/numerics/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>

namespace sis {

uint32_t ExtendCrc32c(uint32_t crc, std::span<const std::byte> bytes) {
  constexpr size_t kMaxAtOnce = size_t{1} << 30;  // the library counts in ints
  uint32_t state = ~crc;
  while (!bytes.empty()) {
    const auto part = bytes.first(std::min(bytes.size(), kMaxAtOnce));
    // The library only reads, although its parameter is not const.
    auto* data = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(part.data()));
    state = crc32_iscsi(data, static_cast<int>(part.size()), state);
    bytes = bytes.subspan(part.size());
  }
  return ~state;
}

}  // namespace sis
