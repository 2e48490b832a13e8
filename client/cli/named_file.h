// Files that the command line names.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sis {

// What it holds; "-" is standard input. NotFound if it can't be read, or is
// empty.
absl::StatusOr<std::string> ReadInput(const std::string& name);

// Unavailable says that it can't be written.
absl::Status WriteFile(const std::string& name, const std::string& contents);

}  // namespace sis
