// Whether a server accepts connections at the addresses it listens on.
#pragma once

#include <string>

#include "absl/time/time.h"

namespace sis {

struct OwnPort {
  std::string address;  // host:port, unix:PATH or unix-abstract:NAME
  bool tls;
};

// Connects to `port` and returns true if the server sends a byte within `timeout`: gRPC sends its
// settings to whoever connects, and over TLS its answer to a ClientHello. The system also completes
// connections that the process never takes, but nothing comes through these. Blocks up to
// `timeout` for each address of the host. Thread-safe.
bool AcceptsConnections(const OwnPort& port, absl::Duration timeout);

// Returns true if a process listens on the Unix socket `address`, unix:PATH.
bool IsTaken(const std::string& address);

}  // namespace sis
