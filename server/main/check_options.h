// What of a server's options contradicts itself, before anything is opened.
#pragma once

#include "absl/status/status.h"
#include "server/main/server.h"

namespace sis {

// InvalidArgument names the flags of sis_server that don't go together, or the address or the store
// that can't be one. Whether an address is free, or a store is there, is not looked at.
absl::Status CheckOptions(const ServerOptions& options);

}  // namespace sis
