// Reads small files that operators and users name.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace sis {

// Larger than any certificate, list of authorities, token, list of identities or configuration.
inline constexpr size_t kMaxFileBytes = size_t{16} << 20;

// Returns the whole file. Returns InvalidArgument, "PATH can't be read" with the reason, if it
// doesn't exist, is not a regular file, or has more than `max_bytes`. Never blocks on a FIFO, and
// never reads a device without end, even if these replace a valid file.
absl::StatusOr<std::string> ReadRegularFile(const std::string& path,
                                            size_t max_bytes = kMaxFileBytes);

}  // namespace sis
