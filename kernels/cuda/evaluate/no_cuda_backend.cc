// Replaces cuda_backend.cc in builds without nvcc.
#include "kernels/cuda/evaluate/cuda_backend.h"

namespace sis::cuda {

absl::StatusOr<CudaBackend> NewCudaBackend(std::unique_ptr<const Backend>,
                                           const DeviceCacheOptions&) {
  return absl::NotFoundError("built without CUDA");
}

}  // namespace sis::cuda
