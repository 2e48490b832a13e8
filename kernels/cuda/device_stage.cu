#include <utility>

#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/device_stage.h"
#include "kernels/cuda/evaluate_kernel.h"
#include "kernels/cuda/tuning.h"

namespace sis::cuda {
namespace {

class DeviceStage final : public Stage {
 public:
  ~DeviceStage() override {
    // Nothing may copy from or to memory that is freed.
    if (stream_.get() != nullptr) cudaStreamSynchronize(stream_.get());
  }

  absl::Status Allocate() {
    absl::Status status = stream_.Create();
    if (status.ok()) status = host_input_.Allocate(kStagedInputBytes);
    if (status.ok()) status = host_output_.Allocate(kStagedOutputBytes);
    if (status.ok()) status = device_input_.Allocate(kStagedInputBytes);
    if (status.ok()) status = device_output_.Allocate(kStagedOutputBytes);
    return status;
  }

  std::span<std::byte> input() override { return {host_input_.data(), kStagedInputBytes}; }
  std::span<const std::byte> output() const override {
    return {host_output_.data(), kStagedOutputBytes};
  }

  absl::Status Start(const Batch& batch) override {
    const cudaStream_t stream = stream_.get();
    absl::Status status =
        ToStatus(cudaMemcpyAsync(device_input_.data(), host_input_.data(), batch.input_bytes(),
                                 cudaMemcpyHostToDevice, stream),
                 "cudaMemcpyAsync to the device");
    if (!status.ok()) return status;
    status = ToStatus(cudaMemsetAsync(device_output_.data() + batch.sums_offset(), 0,
                                      batch.output_bytes() - batch.sums_offset(), stream),
                      "cudaMemsetAsync");
    if (!status.ok()) return status;
    status = LaunchEvaluate(batch.View(device_input_.data(), device_output_.data()), stream);
    if (!status.ok()) return status;
    return ToStatus(cudaMemcpyAsync(host_output_.data(), device_output_.data(),
                                    batch.output_bytes(), cudaMemcpyDeviceToHost, stream),
                    "cudaMemcpyAsync from the device");
  }

  absl::Status Finish() override {
    return ToStatus(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");
  }

 private:
  Stream stream_;
  PinnedMemory host_input_;
  PinnedMemory host_output_;
  DeviceMemory device_input_;
  DeviceMemory device_output_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Stage>> NewDeviceStage() {
  auto stage = std::make_unique<DeviceStage>();
  absl::Status status = stage->Allocate();
  if (!status.ok()) return status;
  return std::unique_ptr<Stage>(std::move(stage));
}

}  // namespace sis::cuda
