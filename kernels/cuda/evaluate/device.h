// Which device there is.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sis::cuda {

// The name of the device that CUDA takes by default ($CUDA_VISIBLE_DEVICES chooses). NotFound, with
// CUDA's reason, if there is none.
absl::StatusOr<std::string> DeviceName();

}  // namespace sis::cuda
