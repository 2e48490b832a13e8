// Checks a server's options before it binds, opens or creates anything.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "server/main/server_options.h"

namespace sis {

// Return the problem of a value, to follow "--listen=...", "--admin=..." or "--store=..."; empty if
// there is none. An address must be valid, and must not be named twice.
std::string ListenProblem(const std::string& listen);
std::string AdminProblem(const std::string& admin);
std::string StoreProblem(const std::string& store);

// Returns InvalidArgument, naming the flags of sis_server, if flags contradict each other or an
// address or store is invalid. Does not check whether an address is free, or a store exists.
absl::Status CheckOptions(const ServerOptions& options);

// Returns InvalidArgument or NotFound, naming the flag, if a file can't be read or parsed:
// --identities, the files of TLS, --proxy_certificate. A start returns the same errors later.
absl::Status CheckFiles(const ServerOptions& options);

}  // namespace sis
