#include <cuda_runtime.h>

#include <cstdlib>

#include "kernels/cuda/dense/dense_kernel.h"
#include "kernels/cuda/dense/dense_runner.h"
#include "kernels/cuda/residency/cuda_status.h"

namespace sis::cuda {
namespace {

class Device final : public DenseRunner {
 public:
  std::shared_ptr<std::byte> Allocate(size_t bytes) const override {
    void* data = nullptr;
    if (cudaMallocManaged(&data, bytes) != cudaSuccess) std::abort();
    return {static_cast<std::byte*>(data), [](std::byte* memory) { cudaFree(memory); }};
  }
  absl::Status Run(DenseStep step, const DenseTask& task) const override {
    const cudaError_t error = LaunchDense(step, task, nullptr);
    if (error != cudaSuccess) return ToStatus(error, "launch of a dense kernel");
    return ToStatus(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
};

}  // namespace

std::unique_ptr<const DenseRunner> DenseOnDevice() { return std::make_unique<Device>(); }

}  // namespace sis::cuda
