// A stage whose device is the host: the kernel's own code, block by block, step by step, thread by
// thread. For tests.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/evaluate_block.h"
#include "kernels/cuda/stage.h"
#include "kernels/cuda/staged_backend.h"
#include "kernels/cuda/tuning.h"

namespace sis::cuda {

// Runs the kernel; the batch's sums must be zero before.
inline void RunBlocksOnHost(const BatchView& batch) {
  const auto add = [](int64_t& sum, int64_t addend) { sum += addend; };
  BlockScratch scratch;
  for (uint32_t block = 0; block < BlockCount(batch.tile_count); ++block) {
    for (int thread = 0; thread < kThreadsPerBlock; ++thread) {
      PrepareUniforms(batch, block, thread, scratch);
    }
    for (int thread = 0; thread < kThreadsPerBlock; ++thread) {
      if (batch.total_variation) {
        EvaluateThread<true>(batch, block, thread, scratch);
      } else {
        EvaluateThread<false>(batch, block, thread, scratch);
      }
    }
    for (int thread = 0; thread < kThreadsPerBlock; ++thread) {
      AddSums(batch, block, thread, scratch, add);
    }
  }
}

class HostStage : public Stage {
 public:
  std::span<std::byte> input() override { return input_; }
  std::span<const std::byte> output() const override { return output_; }

  absl::Status Start(const Batch& batch) override {
    std::fill_n(output_.begin() + static_cast<ptrdiff_t>(batch.sums_offset()),
                batch.output_bytes() - batch.sums_offset(), std::byte{0});
    RunBlocksOnHost(batch.View(input_.data(), output_.data()));
    return absl::OkStatus();
  }
  absl::Status Finish() override { return absl::OkStatus(); }

 private:
  std::vector<std::byte> input_ = std::vector<std::byte>(kStagedInputBytes);
  std::vector<std::byte> output_ = std::vector<std::byte>(kStagedOutputBytes);
};

// All of the CUDA backend but the device.
inline std::unique_ptr<const StagedBackend> BackendOnHostStages(
    std::unique_ptr<const Backend> fallback) {
  std::vector<StagePair> stages(2);
  for (StagePair& pair : stages) {
    for (std::unique_ptr<Stage>& stage : pair) stage = std::make_unique<HostStage>();
  }
  return std::make_unique<StagedBackend>("cuda/on_host", std::move(stages), std::move(fallback));
}

}  // namespace sis::cuda
