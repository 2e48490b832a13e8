// Speed of the kernel on data in the device's memory, compared with the device's read bandwidth.
#pragma once

#include <ostream>

#include "absl/status/status.h"

namespace sis::cuda {

// One line per K and encoding, "used" slots a position on average. Internal if the bytes are not
// the host's.
absl::Status ReportBandwidth(std::ostream& out);

}  // namespace sis::cuda
