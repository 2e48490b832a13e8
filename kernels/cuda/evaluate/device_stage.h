// A stage of the CUDA device.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/evaluate/stage.h"

namespace sis::cuda {

// Allocates its stream, its pinned memory and its memory on the device. `resident` is the memory
// for blocks that stay, or null.
absl::StatusOr<std::unique_ptr<Stage>> NewDeviceStage(std::byte* resident);

}  // namespace sis::cuda
