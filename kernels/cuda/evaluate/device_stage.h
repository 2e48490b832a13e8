// A stage of the CUDA device.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/evaluate/stage.h"

namespace sis::cuda {

// With a stream, pinned memory and device memory of its own, all of it allocated here; and the
// memory on the device that is resident, or null.
absl::StatusOr<std::unique_ptr<Stage>> NewDeviceStage(std::byte* resident);

}  // namespace sis::cuda
