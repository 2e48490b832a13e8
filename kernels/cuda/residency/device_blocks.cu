#include <utility>

#include "kernels/cuda/residency/cuda_status.h"
#include "kernels/cuda/residency/device_blocks.h"
#include "kernels/cuda/residency/device_memory.h"

namespace sis::cuda {
namespace {

class DeviceBlocks final : public ResidentMemory {
 public:
  cudaError_t Allocate(size_t bytes) {
    size_ = bytes;
    return sis::cuda::Allocate(bytes, memory_);
  }

  std::byte* data() override { return memory_.get(); }
  size_t size() const override { return size_; }

 private:
  size_t size_ = 0;
  DeviceMemory memory_;
};

}  // namespace

absl::StatusOr<int64_t> FreeDeviceBytes() {
  size_t free = 0;
  size_t total = 0;
  const cudaError_t error = cudaMemGetInfo(&free, &total);
  if (error != cudaSuccess) return ToStatus(error, "cudaMemGetInfo");
  return static_cast<int64_t>(free);
}

absl::StatusOr<std::unique_ptr<ResidentMemory>> NewDeviceBlocks(size_t bytes) {
  auto blocks = std::make_unique<DeviceBlocks>();
  const cudaError_t error = blocks->Allocate(bytes);
  if (error != cudaSuccess) {
    cudaGetLastError();  // clears the error, or the next launch would report it
    return ToStatus(error, "cudaMalloc");
  }
  return std::unique_ptr<ResidentMemory>(std::move(blocks));
}

}  // namespace sis::cuda
