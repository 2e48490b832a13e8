// Recognises gRPC addresses of this machine. Clients and servers send secrets in plain text only to
// these.
#pragma once

#include "absl/strings/string_view.h"

namespace sis {

// Returns true for a Unix socket, whose bytes stay in the kernel.
bool IsUnixSocket(absl::string_view address);

// Returns true if only this machine can connect: a Unix socket, or the loopback interface.
bool IsLocal(absl::string_view address);

}  // namespace sis
