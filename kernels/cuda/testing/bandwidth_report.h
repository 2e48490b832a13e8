// Speed of the kernel on data in the device's memory, compared with the device's read bandwidth.
#pragma once

#include <ostream>

#include "absl/status/status.h"

namespace sis::cuda {

// Prints one line per K and encoding; "used" is the average number of slots per position. Returns
// Internal if the bytes differ from the host's.
absl::Status ReportBandwidth(std::ostream& out);

}  // namespace sis::cuda
