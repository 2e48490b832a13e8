#include <cuda_runtime.h>

#include "kernels/cuda/residency/cuda_status.h"
#include "kernels/cuda/testing/device_trap.h"

namespace sis::cuda {
namespace {

__global__ void Trap() { __trap(); }

}  // namespace

absl::Status TrapDevice() {
  Trap<<<1, 1>>>();
  cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) error = cudaDeviceSynchronize();
  return ToStatus(error, "a kernel that traps");
}

}  // namespace sis::cuda
