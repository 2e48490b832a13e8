// Behaviour log-probs in 12 bits, rounded down on vectors: the same bits as fixed12.h gives one by
// one. Rows of K log-probs are sorted, used slots first, unused ones -inf.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sis {

// What rows [n, K] become by encoding and decoding, into `rounded` [n, K]; used_slots [n] gets how
// many slots of each are left. False, with nothing done, on machines without vectors.
bool RoundRowsOnVectors(std::span<const float> rows, int slots, std::span<float> rounded,
                        std::span<uint8_t> used_slots);

// Encodes rows [n, K] of whole groups, n a multiple of 16, into LogProbBytes (log_probs.h), and
// rounds them as RoundRowsOnVectors does unless `rounded` is empty. False, with nothing done, on
// machines without vectors.
bool EncodeGroupsOnVectors(std::span<const float> rows, int slots, std::span<uint8_t> used_slots,
                           std::span<std::byte> to, std::span<float> rounded);

}  // namespace sis
