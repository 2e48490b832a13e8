// The backend on a CUDA device.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace sis::cuda {

// On the device that CUDA takes by default. All its memory is allocated here, and a few positions
// are evaluated and compared with the scalar backend before it is handed out. If the device fails
// later, `fallback` takes over (kernels/cuda/staged_backend.h). An error, with CUDA's name of it,
// if there is no device, no memory or no code for it, if the bytes differ, or if this build has no
// CUDA.
absl::StatusOr<std::unique_ptr<const Backend>> NewCudaBackend(
    std::unique_ptr<const Backend> fallback);

}  // namespace sis::cuda
