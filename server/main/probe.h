// The health check of `sis_server --probe`.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace sis {

// Files in PEM, for TLS.
struct ProbeFiles {
  std::string ca = "";           // authority of the server's certificate; empty: no TLS
  std::string certificate = "";  // the caller's, with its key; empty: none
  std::string key = "";
};

// Returns OK if the server at `address`, host:port or unix:path, reports by gRPC's health protocol
// within 5 s that it serves; otherwise the reason. Needs no token.
absl::Status Probe(const std::string& address, const ProbeFiles& files);

}  // namespace sis
