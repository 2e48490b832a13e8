// CRC-32C (Castagnoli), by Intel's ISA-L.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sis {

// Returns the CRC of the bytes that gave `crc`, followed by `bytes`. Start with 0. A call costs
// about 20 ns, so pass many bytes at once.
uint32_t ExtendCrc32c(uint32_t crc, std::span<const std::byte> bytes);

}  // namespace sis
