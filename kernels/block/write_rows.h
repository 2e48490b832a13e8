// Writes the used slots of padded rows as sections of a block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sis {

// Both write the first counts[i] values of each row of [T, slots], and up to kBlockSlack bytes
// more. The multipliers of fixed16 must reach the log-probs.
void WriteCodes(std::span<const float> log_probs, size_t slots, std::span<const uint8_t> counts,
                std::span<const uint8_t> multipliers, std::byte* codes);
void WriteIds(std::span<const int32_t> ids, size_t slots, std::span<const uint8_t> counts,
              size_t id_bytes, std::byte* to);

}  // namespace sis
