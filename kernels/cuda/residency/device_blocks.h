// Memory of the device for copies of blocks.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/residency/resident_blocks.h"

namespace sis::cuda {

// Returns the free memory of CUDA's default device, in bytes.
absl::StatusOr<int64_t> FreeDeviceBytes();

// Allocates all memory at once. An error leaves the device unchanged.
absl::StatusOr<std::unique_ptr<ResidentMemory>> NewDeviceBlocks(size_t bytes);

}  // namespace sis::cuda
