// Packs positions of a call for the device: one block of bytes in, one block of bytes out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/batch_view.h"

namespace sis::cuda {

// What is added to somebody's sums when a whole call has succeeded.
struct PendingSums {
  Sums* into;
  Sums sums;
};

// As many positions as fit. Refers to the spans of the segments, which must outlive it.
class Batch {
 public:
  // Positions of the largest piece of a segment, a multiple of kGroupPositions: with K = 254 in
  // float32 twice, 2.1 MB.
  static constexpr size_t kPiecePositions = 1024;

  // The bytes that input and output may take.
  Batch(size_t input_capacity, size_t output_capacity)
      : input_capacity_(input_capacity), output_capacity_(output_capacity) {}

  // Starts again, empty.
  void Reset(const EvaluateParameters& parameters);

  // Takes at most kPiecePositions positions of the segment from `first` on, and returns how many: 0
  // if they don't fit any more, or if there are none.
  size_t Take(const Segment& segment, size_t first);

  bool empty() const { return tiles_.empty(); }
  size_t input_bytes() const;
  size_t output_bytes() const;
  // Where the sums begin in the output; they end with it, and must be zero before.
  size_t sums_offset() const;

  // Writes input_bytes().
  void WriteInput(std::byte* input) const;
  // Blocks of those sizes, wherever they lie, as a kernel sees them.
  BatchView View(const std::byte* input, std::byte* output) const;
  // Copies results to where the segments want them.
  void ReadOutput(const std::byte* output, std::vector<PendingSums>& sums) const;

 private:
  struct CopyIn {
    std::span<const std::byte> from;
    uint64_t offset;
  };
  struct CopyOut {
    std::span<std::byte> to;
    uint64_t offset;
  };

  template <typename T>
  uint64_t StageInput(std::span<const T> array);
  template <typename T>
  uint64_t StageOutput(std::span<T> array);
  StagedRows StageRows(std::span<const float> token_major, const GroupedLogProbs& grouped,
                       size_t first, size_t count);
  size_t segments_offset() const;
  size_t tiles_offset() const;

  const size_t input_capacity_;
  const size_t output_capacity_;
  EvaluateParameters parameters_{};
  std::vector<StagedSegment> segments_;
  std::vector<StagedTile> tiles_;
  std::vector<Sums*> sums_;
  std::vector<CopyIn> copies_in_;
  std::vector<CopyOut> copies_out_;
  size_t input_end_ = 0;   // of the arrays; segments and tiles follow
  size_t output_end_ = 0;  // of the arrays; sums follow
};

}  // namespace sis::cuda
