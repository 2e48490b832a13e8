#include <utility>

#include "kernels/cuda/evaluate/device_stage.h"
#include "kernels/cuda/evaluate/evaluate_kernel.h"
#include "kernels/cuda/evaluate/tuning.h"
#include "kernels/cuda/residency/cuda_status.h"
#include "kernels/cuda/residency/device_memory.h"

namespace sis::cuda {
namespace {

class DeviceStage final : public Stage {
 public:
  explicit DeviceStage(std::byte* resident) : resident_(resident) {}
  ~DeviceStage() override {
    // Waits for copies from and to the memory that is freed.
    if (stream_.get() != nullptr) cudaStreamSynchronize(stream_.get());
  }

  absl::Status AllocateAll() {
    cudaError_t error = Create(stream_);
    if (error != cudaSuccess) return ToStatus(error, "cudaStreamCreateWithFlags");
    error = Allocate(kStagedInputBytes, host_input_);
    if (error == cudaSuccess) error = Allocate(kStagedOutputBytes, host_output_);
    if (error != cudaSuccess) return ToStatus(error, "cudaHostAlloc");
    error = Allocate(kStagedInputBytes, device_input_);
    if (error == cudaSuccess) error = Allocate(kStagedOutputBytes, device_output_);
    return ToStatus(error, "cudaMalloc");
  }

  std::span<std::byte> input() override { return {host_input_.get(), kStagedInputBytes}; }
  std::span<const std::byte> output() const override {
    return {host_output_.get(), kStagedOutputBytes};
  }

  absl::Status Start(const Batch& batch) override {
    const cudaStream_t stream = stream_.get();
    cudaError_t error = cudaMemcpyAsync(device_input_.get(), host_input_.get(), batch.input_bytes(),
                                        cudaMemcpyHostToDevice, stream);
    if (error != cudaSuccess) return ToStatus(error, "cudaMemcpyAsync to the device");
    for (const Batch::Upload& upload : batch.Uploads()) {
      error = cudaMemcpyAsync(resident_ + upload.to, host_input_.get() + upload.from, upload.bytes,
                              cudaMemcpyHostToDevice, stream);
      if (error != cudaSuccess) return ToStatus(error, "cudaMemcpyAsync of blocks to the device");
    }
    error = cudaMemsetAsync(device_output_.get() + batch.sums_offset(), 0,
                            batch.output_bytes() - batch.sums_offset(), stream);
    if (error != cudaSuccess) return ToStatus(error, "cudaMemsetAsync");
    error =
        LaunchEvaluate(batch.View(device_input_.get(), resident_, device_output_.get()), stream);
    if (error != cudaSuccess) return ToStatus(error, "launch of Evaluate");
    error = cudaMemcpyAsync(host_output_.get(), device_output_.get(), batch.output_bytes(),
                            cudaMemcpyDeviceToHost, stream);
    return ToStatus(error, "cudaMemcpyAsync from the device");
  }

  absl::Status Finish() override {
    return ToStatus(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");
  }

 private:
  std::byte* const resident_;
  Stream stream_;
  PinnedMemory host_input_;
  PinnedMemory host_output_;
  DeviceMemory device_input_;
  DeviceMemory device_output_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Stage>> NewDeviceStage(std::byte* resident) {
  auto stage = std::make_unique<DeviceStage>(resident);
  if (absl::Status status = stage->AllocateAll(); !status.ok()) return status;
  return std::unique_ptr<Stage>(std::move(stage));
}

}  // namespace sis::cuda
