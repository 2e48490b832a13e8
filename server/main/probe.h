// The question of `sis_server --probe` to another server.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace sis {

// Files in PEM, for TLS.
struct ProbeFiles {
  std::string ca = "";  // whose signature the server's certificate must have; empty: no TLS
  std::string certificate = "";  // of the caller, with its key; empty: none
  std::string key = "";
};

// Returns OK if the server at `address`, host:port or unix:path, says by gRPC's health protocol
// within 5 s that it serves. Otherwise the error says why not. Needs no token.
absl::Status Probe(const std::string& address, const ProbeFiles& files);

}  // namespace sis
