// Memory of the device for copies of rows.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/residency/resident_rows.h"

namespace sis::cuda {

// What nobody has taken of the memory of the device that CUDA takes by default.
absl::StatusOr<int64_t> FreeDeviceBytes();

// All of it taken here. An error leaves the device as it was.
absl::StatusOr<std::unique_ptr<ResidentMemory>> NewDeviceRows(size_t bytes);

}  // namespace sis::cuda
