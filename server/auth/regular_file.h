// What small files hold: of those that operators and users name.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace sis {

// More than any certificate, list of authorities, token, list of identities or configuration has.
inline constexpr size_t kMostFileBytes = size_t{16} << 20;

// The whole file. InvalidArgument says that "PATH can't be read", and why: it isn't there, isn't a
// regular file, or has more than `most_bytes`. Never waits for somebody to write, as at a FIFO, and
// never reads on for ever, as of a device: a file that was right may be replaced by anything.
absl::StatusOr<std::string> ReadRegularFile(const std::string& path,
                                            size_t most_bytes = kMostFileBytes);

}  // namespace sis
