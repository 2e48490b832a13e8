// What takes the place of cuda_backend.cc where there is no nvcc.
#include "kernels/cuda/evaluate/cuda_backend.h"

namespace sis::cuda {

absl::StatusOr<CudaBackend> NewCudaBackend(std::unique_ptr<const Backend>,
                                           const DeviceCacheOptions&) {
  return absl::NotFoundError("built without CUDA");
}

}  // namespace sis::cuda
