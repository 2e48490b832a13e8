#include <cuda_runtime.h>

#include <algorithm>
#include <utility>

#include "kernels/cuda/evaluate/evaluate_kernel.h"
#include "kernels/cuda/residency/cuda_status.h"
#include "kernels/cuda/residency/device_memory.h"
#include "kernels/cuda/testing/resident_batch.h"

namespace sis::cuda {
namespace {

constexpr unsigned kReadThreads = 512;
constexpr unsigned kReadBlocks = 4096;
// Number of a thread's outstanding reads.
constexpr int kReadsAhead = 4;

// Reads every 16 bytes once; neighbouring threads read neighbours. The values must be used, or the
// compiler would remove the reads.
__global__ void ReadAll(const uint4* words, size_t count, uint32_t* never) {
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  uint32_t all = 0;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += kReadsAhead * stride) {
    uint4 ahead[kReadsAhead];
    for (int j = 0; j < kReadsAhead; ++j) {
      ahead[j] = i + j * stride < count ? words[i + j * stride] : uint4{};
    }
    for (int j = 0; j < kReadsAhead; ++j) all |= ahead[j].x | ahead[j].y | ahead[j].z | ahead[j].w;
  }
  // No log-prob array is all zeros, but the compiler doesn't know.
  if (all == 0x12345678) *never = all;
}

class Event {
 public:
  Event() { error_ = cudaEventCreate(&event_); }
  ~Event() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  cudaError_t error() const { return error_; }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
  cudaError_t error_;
};

template <class Launch>
absl::StatusOr<double> SecondsOf(const Launch& launch) {
  const Event begin;
  const Event end;
  cudaError_t error = begin.error() != cudaSuccess ? begin.error() : end.error();
  if (error == cudaSuccess) error = cudaEventRecord(begin.get());
  if (error == cudaSuccess) error = launch();
  if (error == cudaSuccess) error = cudaEventRecord(end.get());
  if (error == cudaSuccess) error = cudaEventSynchronize(end.get());
  float milliseconds = 0;
  if (error == cudaSuccess) {
    error = cudaEventElapsedTime(&milliseconds, begin.get(), end.get());
  }
  if (error != cudaSuccess) return ToStatus(error, "a timed launch");
  return milliseconds * 1e-3;
}

class Resident final : public ResidentBatch {
 public:
  absl::Status Fill(const Batch& batch, size_t copies) {
    // Each copy contains ranges and tiles, but the kernel reads these instead.
    std::vector<std::byte> block(batch.input_bytes());
    batch.WriteInput(block.data());
    const size_t stride = (block.size() + kAlignment - 1) / kAlignment * kAlignment;
    output_bytes_ = batch.output_bytes();
    output_stride_ = (output_bytes_ + kAlignment - 1) / kAlignment * kAlignment;
    input_bytes_ = copies * stride;
    copies_ = copies;
    cudaError_t error = Allocate(copies * output_stride_, output_);
    if (error != cudaSuccess) return ToStatus(error, "cudaMalloc");
    const BatchView view = batch.View(block.data(), nullptr, output_.get());

    uint32_t range_count = 0;
    for (uint32_t i = 0; i < view.tile_count; ++i) {
      range_count = std::max(range_count, view.tiles[i].range + 1);
    }
    const auto sums_stride = static_cast<uint32_t>(output_stride_ / sizeof(SumFields));
    std::vector<StagedRange> ranges;
    std::vector<StagedTile> tiles;
    for (size_t copy = 0; copy < copies; ++copy) {
      const auto move = [](uint64_t& offset, uint64_t by) {
        if (offset != kAbsent) offset += by;
      };
      for (uint32_t i = 0; i < view.tile_count; ++i) {
        StagedTile tile = view.tiles[i];
        tile.range += static_cast<uint32_t>(ranges.size());
        tiles.push_back(tile);
      }
      for (uint32_t i = 0; i < range_count; ++i) {
        StagedRange range = view.ranges[i];
        for (uint64_t* offset : {&range.log_probs, &range.multipliers, &range.counts, &range.ranks,
                                 &range.sampled_log_probs, &range.current_sampled_log_probs,
                                 &range.current_log_probs}) {
          move(*offset, copy * stride);
        }
        for (uint64_t* offset : {&range.decisions, &range.acceptance_probabilities,
                                 &range.log_modified_ratios, &range.modified_ratios}) {
          move(*offset, copy * output_stride_);
        }
        range.sums += static_cast<uint32_t>(copy) * sums_stride;
        ranges.push_back(range);
      }
    }

    error = Allocate(input_bytes_, input_);
    if (error == cudaSuccess) error = Allocate(ranges.size() * sizeof(ranges[0]), ranges_);
    if (error == cudaSuccess) error = Allocate(tiles.size() * sizeof(tiles[0]), tiles_);
    if (error == cudaSuccess) error = Allocate(sizeof(uint32_t), never_);
    if (error != cudaSuccess) return ToStatus(error, "cudaMalloc");
    for (size_t copy = 0; copy < copies && error == cudaSuccess; ++copy) {
      error = cudaMemcpy(input_.get() + copy * stride, block.data(), block.size(),
                         cudaMemcpyHostToDevice);
    }
    if (error == cudaSuccess) {
      error = cudaMemcpy(ranges_.get(), ranges.data(), ranges.size() * sizeof(ranges[0]),
                         cudaMemcpyHostToDevice);
    }
    if (error == cudaSuccess) {
      error = cudaMemcpy(tiles_.get(), tiles.data(), tiles.size() * sizeof(tiles[0]),
                         cudaMemcpyHostToDevice);
    }
    if (error != cudaSuccess) return ToStatus(error, "cudaMemcpy");
    view_ = view;
    view_.tile_count = static_cast<uint32_t>(tiles.size());
    view_.tiles = reinterpret_cast<const StagedTile*>(tiles_.get());
    view_.ranges = reinterpret_cast<const StagedRange*>(ranges_.get());
    view_.input = input_.get();
    return absl::OkStatus();
  }

  absl::StatusOr<double> EvaluateSeconds() const override {
    const cudaError_t error = cudaMemset(output_.get(), 0, copies_ * output_stride_);
    if (error != cudaSuccess) return ToStatus(error, "cudaMemset");
    return SecondsOf([&] { return LaunchEvaluate(view_, nullptr); });
  }

  absl::StatusOr<double> ReadSeconds(size_t bytes) const override {
    return SecondsOf([&] {
      ReadAll<<<kReadBlocks, kReadThreads>>>(reinterpret_cast<const uint4*>(input_.get()),
                                             bytes / sizeof(uint4),
                                             reinterpret_cast<uint32_t*>(never_.get()));
      return cudaGetLastError();
    });
  }

  size_t input_bytes() const override { return input_bytes_; }

  absl::StatusOr<std::vector<std::byte>> LastOutput() const override {
    std::vector<std::byte> output(output_bytes_);
    const cudaError_t error =
        cudaMemcpy(output.data(), output_.get() + (copies_ - 1) * output_stride_, output.size(),
                   cudaMemcpyDeviceToHost);
    if (error != cudaSuccess) return ToStatus(error, "cudaMemcpy");
    return output;
  }

 private:
  // Alignment of a copy, in bytes: a multiple of the sums' size, so that sums can be indexed across
  // all copies.
  static constexpr size_t kAlignment = 32 * sizeof(SumFields);

  size_t copies_ = 0;
  size_t input_bytes_ = 0;
  size_t output_bytes_ = 0;
  size_t output_stride_ = 0;
  BatchView view_{};
  DeviceMemory input_;
  DeviceMemory output_;
  DeviceMemory ranges_;
  DeviceMemory tiles_;
  DeviceMemory never_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<const ResidentBatch>> ResidentBatch::New(const Batch& batch,
                                                                        size_t copies) {
  auto resident = std::make_unique<Resident>();
  if (absl::Status status = resident->Fill(batch, copies); !status.ok()) return status;
  return std::unique_ptr<const ResidentBatch>(std::move(resident));
}

}  // namespace sis::cuda
