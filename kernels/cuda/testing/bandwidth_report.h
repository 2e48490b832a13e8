// How fast the kernel evaluates data that is on the device, beside how fast the device reads.
#pragma once

#include <ostream>

#include "absl/status/status.h"

namespace sis::cuda {

// One line per K and encoding, "used" slots a position on average. Internal if the bytes are not
// the host's.
absl::Status ReportBandwidth(std::ostream& out);

}  // namespace sis::cuda
