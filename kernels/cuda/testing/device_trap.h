// A device that fails.
#pragma once

#include "absl/status/status.h"

namespace sis::cuda {

// Ends a kernel by a trap. From then on every call to the device fails in this process, as after an
// illegal access or the loss of the device. Returns the kernel's error.
absl::Status TrapDevice();

}  // namespace sis::cuda
