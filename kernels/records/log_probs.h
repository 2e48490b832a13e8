// Arrays of log-probs, packed: groups of 16 positions, rank by rank (kernels/records/encoding.h,
// docs/page_format.md).
//
// Whatever is encoded at a position is a function of that position's slots alone: never of the
// sampled token, never of other positions. That keeps the envelope independent of the draw, and the
// law of accepted tokens exact.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/records/encoding.h"

namespace sis {

// Bytes of n positions of K slots.
constexpr size_t LogProbBytes(LogProbEncoding encoding, size_t positions, size_t slots) {
  return GroupCount(positions) * GroupBytes(encoding, slots);
}

// What of a row of K log-probs, sorted, used slots first, unused ones -inf, can be encoded: how
// many slots, and the multiplier of kFixed12 with which they fit best; else 1.
struct RowFit {
  uint16_t used;
  uint32_t multiplier;
};
RowFit FitRow(LogProbEncoding encoding, std::span<const float> row);

// Encodes behaviour log-probs [n, K], rounded down, into LogProbBytes. Each row is sorted, used
// slots first, unused ones -inf (kernels/records/validate.h). Slots too low to be rounded down
// become unused; they are the last ones. used_slots [n] gets how many are left, and `rounded` [n,
// K], unless it is empty, what RoundBehaviorRows gives.
void EncodeBehaviorLogProbs(LogProbEncoding encoding, std::span<const float> log_probs, int slots,
                            std::span<uint16_t> used_slots, std::span<std::byte> to,
                            std::span<float> rounded = {});

// What such rows [n, K] become by encoding and decoding, into `rounded` [n, K]; used_slots [n] gets
// how many slots are left used. Rounding what is rounded changes nothing.
void RoundBehaviorRows(LogProbEncoding encoding, std::span<const float> rows, int slots,
                       std::span<float> rounded, std::span<uint16_t> used_slots);

// The next two do it to 12 bits on vectors: the same bits as fixed12.h gives one by one.

// What rows [n, K] become by encoding and decoding, into `rounded` [n, K]; used_slots [n] gets how
// many slots of each are left. False, with nothing done, on machines without vectors.
bool RoundRowsOnVectors(std::span<const float> rows, int slots, std::span<float> rounded,
                        std::span<uint16_t> used_slots);

// Encodes rows [n, K] of whole groups, n a multiple of 16, into LogProbBytes (log_probs.h), and
// rounds them as RoundRowsOnVectors does unless `rounded` is empty. False, with nothing done, on
// machines without vectors.
bool EncodeGroupsOnVectors(std::span<const float> rows, int slots, std::span<uint16_t> used_slots,
                           std::span<std::byte> to, std::span<float> rounded);

}  // namespace sis
