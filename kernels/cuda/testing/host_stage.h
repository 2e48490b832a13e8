// A stage that runs the kernel's code on the host, block by block, step by step, thread by thread.
// For tests.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/evaluate/evaluate_block.h"
#include "kernels/cuda/evaluate/stage.h"
#include "kernels/cuda/evaluate/staged_backend.h"
#include "kernels/cuda/evaluate/tuning.h"
#include "kernels/cuda/residency/resident_blocks.h"

namespace sis::cuda {

// Runs the kernel; the batch's sums must be zero before.
inline void RunBlocksOnHost(const BatchView& batch) {
  const auto add = [](int64_t& sum, int64_t addend) { sum += addend; };
  ThreadBlockScratch scratch;
  for (uint32_t block = 0; block < ThreadBlockCount(batch.tile_count); ++block) {
    for (int thread = 0; thread < kThreadsPerBlock; ++thread) {
      Prepare(batch, block, thread, scratch);
    }
    for (int thread = 0; thread < kThreadsPerBlock; ++thread) {
      EvaluateThread(batch, block, thread, scratch);
    }
    for (int thread = 0; thread < kThreadsPerBlock; ++thread) {
      AddSums(batch, block, thread, scratch, add);
    }
  }
}

// Resident memory on the host that behaves like a device's. Accesses that only the device may make
// fault, and bytes that are unwritten or discarded are garbage.
class HostResidentMemory final : public ResidentMemory {
 public:
  explicit HostResidentMemory(size_t bytes)
      : bytes_(bytes),
        data_(static_cast<std::byte*>(
            mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    if (data_ == MAP_FAILED) std::abort();
    Discard(0, bytes);
  }
  ~HostResidentMemory() override { munmap(data_, bytes_); }

  std::byte* data() override { return data_; }
  size_t size() const override { return bytes_; }
  void Discard(size_t offset, size_t bytes) override {
    const Access access(*this);
    std::memset(data_ + offset, 0x95, bytes);  // log-probs of -6e-26, and codes of low ones
  }

  // The simulated device works only while it holds an Access.
  class Access {
   public:
    explicit Access(HostResidentMemory& memory) : memory_(memory) {
      const std::lock_guard lock(memory_.mutex_);
      if (memory_.users_++ == 0) memory_.Protect(PROT_READ | PROT_WRITE);
    }
    ~Access() {
      const std::lock_guard lock(memory_.mutex_);
      if (--memory_.users_ == 0) memory_.Protect(PROT_NONE);
    }
    Access(const Access&) = delete;
    Access& operator=(const Access&) = delete;

   private:
    HostResidentMemory& memory_;
  };

 private:
  void Protect(int protection) {
    if (mprotect(data_, bytes_, protection) != 0) std::abort();
  }

  const size_t bytes_;
  std::byte* const data_;
  std::mutex mutex_;
  int users_ = 0;  // guarded by mutex_
};

// Time of the simulated device's work: as late as possible before Finish, or in another thread
// immediately after Start. Without memory for blocks, it works in Start.
enum class When { kLate, kInAThread };

class HostStage : public Stage {
 public:
  explicit HostStage(HostResidentMemory* memory = nullptr, When when = When::kLate)
      : memory_(memory),
        policy_(when == When::kLate ? std::launch::deferred : std::launch::async) {}

  std::span<std::byte> input() override { return input_; }
  std::span<const std::byte> output() const override { return output_; }

  absl::Status Start(const Batch& batch) override {
    if (memory_ == nullptr) {
      Run(batch, nullptr);
      return absl::OkStatus();
    }
    done_ = std::async(policy_, [this, &batch] {
      const HostResidentMemory::Access access(*memory_);
      for (const Batch::Upload& upload : batch.Uploads()) {
        std::memcpy(memory_->data() + upload.to, input_.data() + upload.from, upload.bytes);
      }
      Run(batch, memory_->data());
    });
    return absl::OkStatus();
  }
  absl::Status Finish() override {
    if (done_.valid()) done_.get();  // else Start failed
    return absl::OkStatus();
  }

 private:
  void Run(const Batch& batch, const std::byte* resident) {
    std::fill_n(output_.begin() + static_cast<ptrdiff_t>(batch.sums_offset()),
                batch.output_bytes() - batch.sums_offset(), std::byte{0});
    RunBlocksOnHost(batch.View(input_.data(), resident, output_.data()));
  }

  HostResidentMemory* const memory_;
  const std::launch policy_;
  std::vector<std::byte> input_ = std::vector<std::byte>(kStagedInputBytes);
  std::vector<std::byte> output_ = std::vector<std::byte>(kStagedOutputBytes);
  std::future<void> done_;
};

// Returns the CUDA backend with the host in place of the device, with `slabs` slabs of memory for
// blocks. `make_stage` returns a stage with this memory, or null.
template <typename MakeStage>
std::unique_ptr<const StagedBackend> BackendOnStages(const std::string& name,
                                                     std::unique_ptr<const Backend> fallback,
                                                     const MakeStage& make_stage,
                                                     size_t stage_pairs, size_t slabs,
                                                     size_t slab_bytes) {
  auto memory = slabs == 0 ? nullptr : std::make_unique<HostResidentMemory>(slabs * slab_bytes);
  std::vector<StagePair> stages(stage_pairs);
  for (StagePair& pair : stages) {
    for (std::unique_ptr<Stage>& stage : pair) stage = make_stage(memory.get());
  }
  return std::make_unique<StagedBackend>(name, std::move(stages), std::move(fallback),
                                         std::move(memory), slab_bytes);
}

inline std::unique_ptr<const StagedBackend> BackendOnHostStages(
    std::unique_ptr<const Backend> fallback, size_t slabs = 0,
    size_t slab_bytes = ResidentBlocks::kSlabBytes, When when = When::kLate) {
  const auto make_stage = [&](HostResidentMemory* memory) {
    return std::make_unique<HostStage>(memory, when);
  };
  return BackendOnStages("cuda/on_host", std::move(fallback), make_stage, 2, slabs, slab_bytes);
}

}  // namespace sis::cuda
