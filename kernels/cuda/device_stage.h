// A stage of the CUDA device.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/stage.h"

namespace sis::cuda {

// With a stream, pinned memory and device memory of its own, all of it allocated here.
absl::StatusOr<std::unique_ptr<Stage>> NewDeviceStage();

}  // namespace sis::cuda
