// Which addresses, as gRPC takes them, lead nowhere else than to this machine. Clients and servers
// go by it where something may not travel in plain text.
#pragma once

#include "absl/strings/string_view.h"

namespace sis {

// What goes there doesn't leave the kernel.
bool IsUnixSocket(absl::string_view address);

// Whether only this machine can connect there: a Unix socket, or the loopback interface.
bool IsLocal(absl::string_view address);

}  // namespace sis
