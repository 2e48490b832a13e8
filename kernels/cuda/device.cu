#include <cuda_runtime.h>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/device.h"

namespace sis::cuda {

absl::StatusOr<std::string> DeviceName() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    return absl::NotFoundError(absl::StrCat("no CUDA device, ", cudaGetErrorName(error)));
  }
  if (count == 0) return absl::NotFoundError("no CUDA device");
  int device = 0;
  cudaDeviceProp properties;
  absl::Status status = ToStatus(cudaGetDevice(&device), "cudaGetDevice");
  if (status.ok()) {
    status = ToStatus(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  }
  if (!status.ok()) return status;
  return std::string(properties.name);
}

}  // namespace sis::cuda
