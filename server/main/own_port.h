// Checks that a server accepts connections at its own addresses.
#pragma once

#include <string>

#include "absl/time/time.h"

namespace sis {

struct OwnPort {
  std::string address;  // host:port, unix:PATH or unix-abstract:NAME
  bool tls;
};

// Connects to `port` and returns true if the server sends a byte within `timeout`. gRPC sends its
// settings to every client, or over TLS its response to a ClientHello. A connection alone proves
// nothing: the system completes it even if the process never accepts it. Blocks up to `timeout` for
// each address of the host. Thread-safe.
bool AcceptsConnections(const OwnPort& port, absl::Duration timeout);

// Returns true if a process listens on the Unix socket `address`, unix:PATH.
bool IsTaken(const std::string& address);

}  // namespace sis
