// Memory of the device for copies of blocks.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/residency/resident_blocks.h"

namespace sis::cuda {

// How much memory is free on the device that CUDA takes by default.
absl::StatusOr<int64_t> FreeDeviceBytes();

// Takes all of it at once. An error leaves the device as it was.
absl::StatusOr<std::unique_ptr<ResidentMemory>> NewDeviceBlocks(size_t bytes);

}  // namespace sis::cuda
