// Packs positions of a call for the device: an input buffer, an output buffer, and blocks that are
// copied to stay there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/evaluate/batch_view.h"
#include "kernels/cuda/residency/resident_blocks.h"
#include "kernels/decide/backend.h"

namespace sis::cuda {

// Sums to add to a caller's sums once the whole call has succeeded.
struct PendingSums {
  Sums* into;
  Sums sums;
};

// A batch of as many positions as fit. Refers to the spans of the ranges, which must outlive it.
class Batch {
 public:
  // Maximum bytes in the input or the output, without uploads: for a range without its positions;
  // for a tile, in the input without log-probs at slots, and with them.
  static constexpr size_t kRangeBytes = 1024;
  static constexpr size_t kTileInputBytes = sizeof(StagedTile) + kTilePositions * 12;
  static constexpr size_t kTileOutputBytes = kTilePositions * 28;
  static constexpr size_t kMaxTileBytes =
      kTileInputBytes + kTilePositions * kMaxBlockSlots * 2 * sizeof(float);

  // `input_capacity` and `output_capacity` limit the bytes of input, with uploads, and of output.
  // Without resident blocks everything is staged.
  Batch(size_t input_capacity, size_t output_capacity, ResidentBlocks* resident = nullptr)
      : input_capacity_(input_capacity), output_capacity_(output_capacity), blocks_(resident) {}

  // Starts again, empty. Abandons the previous use of resident memory unless Done was called.
  void Reset(const EvaluateParameters& parameters);

  // Adds positions of the range, which must be GATHERED, from `first` on, tile by tile, and returns
  // their number. Returns 0 if perhaps none fit, or if there are none.
  size_t Take(const BackendRange& range, size_t first);

  bool empty() const { return tiles_.empty(); }
  size_t input_bytes() const;
  size_t output_bytes() const;
  // Offset of the sums in the output. They extend to its end, and must be zero before the kernel.
  size_t sums_offset() const;

  // A range of bytes, after the input, to copy into resident memory before the kernel runs.
  // Neighbouring ranges are merged.
  struct Upload {
    size_t from;  // counted from the first byte of the input
    size_t to;
    size_t bytes;
  };
  std::vector<Upload> Uploads() const;

  // Writes input_bytes(), followed by the uploads.
  void WriteInput(std::byte* input) const;
  // Returns the kernel's view of buffers of these sizes, and of resident memory.
  BatchView View(const std::byte* input, const std::byte* resident, std::byte* output) const;
  // Copies the results to the outputs of the ranges.
  void ReadOutput(const std::byte* output, std::vector<PendingSums>& sums) const;
  // Must be called after the batch has run without an error. Others may then use its copies.
  void Done() { blocks_.Done(); }

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
  size_t uploads_offset() const;
  size_t ranges_offset() const;
  size_t tiles_offset() const;

  const size_t input_capacity_;
  const size_t output_capacity_;
  EvaluateParameters parameters_{};
  std::vector<StagedRange> ranges_;
  std::vector<StagedTile> tiles_;
  std::vector<Sums*> sums_;
  std::vector<CopyIn> copies_in_;
  std::vector<CopyOut> copies_out_;
  ResidentBlocks::Use blocks_;
  size_t upload_bytes_ = 0;
  size_t input_end_ = 0;   // of the arrays; ranges and tiles follow
  size_t output_end_ = 0;  // of the arrays; sums follow
};

}  // namespace sis::cuda
