// What a kernel is given: stretches of positions in the input buffer, or with their recorded rows
// in memory that stays on the device, and where in the output buffer their results go. Plain
// structs, the same on host and device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/evaluate/slot_readers.h"
#include "kernels/decide/backend.h"
#include "kernels/numerics/host_device.h"

namespace sis::cuda {

// Threads that run in step. A warp decides the positions of one tile, one a thread.
inline constexpr int kTilePositions = 32;

// The offset of an array that is not there.
inline constexpr uint64_t kAbsent = ~uint64_t{0};

struct StagedRows {
  uint64_t offset = kAbsent;
  RowLayout layout = RowLayout::kNone;
  LogProbEncoding encoding = LogProbEncoding::kFloat32;
  uint8_t first_lane = 0;  // 0 if token-major
};

// Offsets are in bytes, from the start of the input or the output (what is resident: of the
// resident memory), and aligned to the elements.
struct StagedStretch {
  uint64_t sequence_key;
  uint32_t first_position;
  uint32_t count;
  uint32_t sums;  // which of the batch's sums
  // Where the recorded rows are: behavior, behavior_sampled_log_probs and sampled_ranks.
  bool resident;
  bool byte_ranks;  // sampled_ranks: RankSpan's bytes, else its halves
  StagedRows behavior;
  uint64_t current = kAbsent;  // float32; laid out as the slots of `behavior`
  // Of kRagged, in the input: those of RaggedLogProbs. The codes, and current values, begin with
  // that of place begins[0], or with the place before it if that is odd.
  uint64_t counts = kAbsent;
  uint64_t begins = kAbsent;
  uint64_t multipliers = kAbsent;
  // Input, [count] each.
  uint64_t behavior_sampled_log_probs;
  uint64_t sampled_ranks;
  uint64_t current_sampled_log_probs;
  uint64_t log_envelopes = kAbsent;
  uint64_t covered_masses = kAbsent;
  // Output, [count] each.
  uint64_t decisions;
  uint64_t acceptance_probabilities = kAbsent;
  uint64_t log_modified_ratios = kAbsent;
  uint64_t modified_ratios = kAbsent;
  uint64_t log_ratios = kAbsent;
  uint64_t output_log_envelopes = kAbsent;
  uint64_t output_covered_masses = kAbsent;
};

// The positions `first` to `first` + kTilePositions of a stretch, counted from its first one; those
// below 0 or from count on are not there. Tiles begin where groups do.
struct StagedTile {
  uint32_t stretch;
  int32_t first;
};

// Sums, as the array that they are.
inline constexpr int kSumFields = sizeof(Sums) / sizeof(int64_t);
struct SumFields {
  int64_t field[kSumFields];
};
static_assert(sizeof(SumFields) == sizeof(Sums));

struct BatchView {
  int slots;
  int top_k;
  uint64_t draw;
  bool total_variation;
  uint32_t tile_count;
  const StagedTile* tiles;
  const StagedStretch* stretches;
  SumFields* sums;  // zero before
  const std::byte* input;
  const std::byte* resident;
  std::byte* output;
};

SIS_HOST_DEVICE inline const std::byte* RecordedRows(const BatchView& batch,
                                                     const StagedStretch& stretch) {
  return stretch.resident ? batch.resident : batch.input;
}

}  // namespace sis::cuda
