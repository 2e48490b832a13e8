// CRC-32C (Castagnoli), by the SSE 4.2 instruction and the carry-less product where the
// processor has both, else by table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sis {

// The CRC of the bytes that gave `crc`, followed by `bytes`. Start with 0.
uint32_t ExtendCrc32c(uint32_t crc, std::span<const std::byte> bytes);

// The portable implementation of the same, for the test that holds the two together.
uint32_t ExtendCrc32cPortable(uint32_t crc, std::span<const std::byte> bytes);

}  // namespace sis
