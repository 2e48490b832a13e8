// Arguments of a kernel: ranges of positions, and the offsets of their results in the output
// buffer. The ranges' blocks are in the input buffer or in memory that stays on the device.
// Plain structs, identical on host and device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/block/block.h"
#include "kernels/decide/backend.h"
#include "kernels/numerics/host_device.h"

namespace sis::cuda {

// Number of threads of a warp. A warp decides the positions of one tile, one per thread.
inline constexpr int kTilePositions = 32;

// The offset of an absent array.
inline constexpr uint64_t kAbsent = ~uint64_t{0};

// Offsets are in bytes, from the start of the input or the output, or of the resident memory, and
// aligned to the elements.
struct StagedRange {
  uint64_t sequence_key;
  uint32_t first_position;
  uint32_t count;
  uint32_t sums;  // index among the batch's sums
  BlockEncoding encoding;
  bool resident;  // the BlockRange's five arrays are in resident memory, not in the input
  uint64_t log_probs;
  uint64_t multipliers = kAbsent;  // of kFixed16
  uint64_t counts;
  uint64_t ranks;
  uint64_t sampled_log_probs;
  // Input: the arrays of CurrentView, in the GATHERED form.
  uint64_t current_sampled_log_probs;
  uint64_t current_log_probs;
  // Output, [count] each.
  uint64_t decisions;
  uint64_t acceptance_probabilities = kAbsent;
  uint64_t log_modified_ratios = kAbsent;
  uint64_t modified_ratios = kAbsent;
  uint64_t log_ratios = kAbsent;
  uint64_t output_log_envelopes = kAbsent;
  uint64_t output_covered_masses = kAbsent;
};

// The positions [first, first + kTilePositions) of a range, counted from its first position, and
// ending at its count. The host, which sums counts to fill a batch, sends the offset of the tile's
// first slot. Threads add the counts of earlier positions of the tile. So one offset per tile
// crosses the bus.
struct StagedTile {
  uint32_t range;
  uint32_t first;
  uint32_t first_slot;  // of the range's used slots
};

// Sums, as the array that they are.
inline constexpr int kSumFields = sizeof(Sums) / sizeof(int64_t);
struct SumFields {
  int64_t field[kSumFields];
};
static_assert(sizeof(SumFields) == sizeof(Sums));

struct BatchView {
  int top_k;
  uint64_t draw;
  uint32_t tile_count;
  const StagedTile* tiles;
  const StagedRange* ranges;
  SumFields* sums;  // must be zero before the kernel
  const std::byte* input;
  const std::byte* resident;
  std::byte* output;
};

SIS_HOST_DEVICE inline const std::byte* RecordedBytes(const BatchView& batch,
                                                      const StagedRange& range) {
  return range.resident ? batch.resident : batch.input;
}

}  // namespace sis::cuda
