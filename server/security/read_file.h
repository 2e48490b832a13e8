// Small files as a whole.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace sis {

// InvalidArgument says why it can't be read.
absl::StatusOr<std::string> ReadFile(const std::string& path);

}  // namespace sis
