// Packed rows, read on vectors; those of groups (kernels/records/encoding.h) token after token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/records/encoding.h"
#include "kernels/records/packed_row.h"

namespace sis {

// The log-probs of one group, of GroupBytes, into [16, K]; -inf in unused slots.
void ReadLogProbGroup(LogProbEncoding encoding, std::span<const std::byte> group,
                      std::span<float> log_probs);

// Whether all 16 positions of such a group use all K slots.
bool UsesEverySlot(LogProbEncoding encoding, std::span<const std::byte> group, size_t slots);

// The ids of one group, K rows (packed_row.h) of so many bits, into [16, K]. Reads nothing beyond
// them.
void ReadIdGroup(std::span<const std::byte> rows, int bits, std::span<int32_t> ids);

// As UnpackRows (packed_row.h).
void UnpackRowsOnVectors(std::span<const std::byte> from, int width, std::span<RowValues> rows);

}  // namespace sis
