// A stage of the CUDA device.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/evaluate/stage.h"

namespace sis::cuda {

// Allocates a stream, pinned memory and device memory. `resident` is the memory for blocks that
// stay, or null.
absl::StatusOr<std::unique_ptr<Stage>> NewDeviceStage(std::byte* resident);

}  // namespace sis::cuda
