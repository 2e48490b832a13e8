// A backend that cuts calls into batches and sends them through stages, so that packing one batch
// overlaps with evaluating the one before. Knows no CUDA: tests run it on a CPU.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cuda/evaluate/stage.h"
#include "kernels/cuda/evaluate/tuning.h"
#include "kernels/cuda/residency/resident_blocks.h"
#include "kernels/decide/backend.h"

namespace sis::cuda {

// Stages of one call: while one stage evaluates, the other is filled.
using StagePair = std::array<std::unique_ptr<Stage>, 2>;

// When a stage fails, the fallback evaluates that call and all later ones, and one line on stderr
// says so: nothing is added to sums, and no call returns, before its results are whole
// (docs/decisions.md, 13). It also evaluates calls that want a prefix curve.
class StagedBackend final : public Backend {
 public:
  // As many calls run at once as there are pairs; others wait for their turn. Blocks with a tag are
  // kept in `memory`, which all stages know; null: nowhere.
  StagedBackend(std::string name, std::vector<StagePair> stages,
                std::unique_ptr<const Backend> fallback,
                std::unique_ptr<ResidentMemory> memory = nullptr,
                size_t slab_bytes = ResidentBlocks::kSlabBytes);
  ~StagedBackend() override;

  std::string_view name() const override { return name_; }
  void Evaluate(const EvaluateParameters& parameters,
                std::span<const BackendRange> ranges) const override;
  size_t values_per_call() const override { return kValuesPerCall; }
  ResidentBlocksStats resident_blocks() const override;

  // As Evaluate, without a fallback; no prefix curve. After an error outputs are anything, and sums
  // unchanged.
  absl::Status TryEvaluate(const EvaluateParameters& parameters,
                           std::span<const BackendRange> ranges) const;

 private:
  struct StagedBatch;
  struct Pair;
  class PairInUse;

  const std::string name_;
  const std::unique_ptr<const Backend> fallback_;
  // Freed after the stages, which wait for the device.
  const std::unique_ptr<ResidentMemory> memory_;
  const std::unique_ptr<ResidentBlocks> blocks_;
  std::vector<std::unique_ptr<Pair>> pairs_;
  mutable std::atomic<bool> failed_ = false;
  mutable std::mutex mutex_;
  mutable std::condition_variable freed_;
  mutable std::vector<Pair*> free_;  // guarded by mutex_
};

}  // namespace sis::cuda
