// A device that fails.
#pragma once

#include "absl/status/status.h"

namespace sis::cuda {

// Ends a kernel by a trap: from then on every call to the device fails in this process, as after an
// illegal access or a lost device. Returns the error that it gave.
absl::Status TrapDevice();

}  // namespace sis::cuda
