// Reads small files that operators and users name.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace sis {

// Returns the whole file. Returns InvalidArgument, "PATH can't be read" with the reason, if it
// doesn't exist or is not a regular file. So a FIFO never blocks, and no device is read without
// end.
absl::StatusOr<std::string> ReadRegularFile(const std::string& path);

}  // namespace sis
