// A backend that splits calls into batches for stages, so that packing a batch overlaps with
// evaluating the previous one. Independent of CUDA: tests run it on a CPU.
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

// If a stage fails, the fallback evaluates that call and all later ones, and one line is logged to
// stderr. Sums are changed, and calls return, only with complete results (docs/decisions.md, 13).
// The fallback also evaluates calls in the REDUCED form, where a device has nothing to do, and
// those that want a total variation or a prefix curve.
class StagedBackend final : public Backend {
 public:
  // Runs one call per pair concurrently; further calls wait. Keeps blocks with a tag in `memory`,
  // which all stages share; null: keeps none.
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

  // Like Evaluate, without the fallback and what it does. After an error outputs are undefined, and
  // sums unchanged.
  absl::Status TryEvaluate(const EvaluateParameters& parameters,
                           std::span<const BackendRange> ranges) const;

 private:
  struct StagedBatch;
  struct Pair;
  class PairInUse;

  const std::string name_;
  const std::unique_ptr<const Backend> fallback_;
  // Must outlive the stages, whose destructors wait for the device.
  const std::unique_ptr<ResidentMemory> memory_;
  const std::unique_ptr<ResidentBlocks> blocks_;
  std::vector<std::unique_ptr<Pair>> pairs_;
  mutable std::atomic<bool> failed_ = false;
  mutable std::mutex mutex_;
  mutable std::condition_variable freed_;
  mutable std::vector<Pair*> free_;  // guarded by mutex_
};

}  // namespace sis::cuda
