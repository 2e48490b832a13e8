// What takes the place of cuda_backend.cc where there is no nvcc.
#include "kernels/cuda/cuda_backend.h"

namespace sis::cuda {

absl::StatusOr<std::unique_ptr<const Backend>> NewCudaBackend(std::unique_ptr<const Backend>) {
  return absl::NotFoundError("built without CUDA");
}

}  // namespace sis::cuda
