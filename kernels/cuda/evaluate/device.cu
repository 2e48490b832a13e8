#include <cuda_runtime.h>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/evaluate/device.h"
#include "kernels/cuda/residency/cuda_status.h"

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
  if (absl::Status status = ToStatus(cudaGetDevice(&device), "cudaGetDevice"); !status.ok()) {
    return status;
  }
  if (absl::Status status =
          ToStatus(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
      !status.ok()) {
    return status;
  }
  return std::string(properties.name);
}

}  // namespace sis::cuda
