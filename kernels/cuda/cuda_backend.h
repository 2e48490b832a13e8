// The backend on a CUDA device.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cuda/staged_backend.h"

namespace sis::cuda {

// On the device that CUDA takes by default. All its memory is allocated here, and a few positions
// are evaluated and compared with the scalar backend before it is handed out. An error, with CUDA's
// name of it, if there is no device, no memory, no code for it, or if the bytes differ.
absl::StatusOr<std::unique_ptr<const StagedBackend>> NewCudaBackend(
    std::unique_ptr<const Backend> fallback);

}  // namespace sis::cuda
