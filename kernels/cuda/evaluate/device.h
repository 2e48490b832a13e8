// Names the device.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sis::cuda {

// Returns the name of CUDA's default device, which $CUDA_VISIBLE_DEVICES selects; NotFound, with
// CUDA's reason, if there is none.
absl::StatusOr<std::string> DeviceName();

}  // namespace sis::cuda
