// What is wrong with a server's options, before it binds, opens or makes anything.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "server/main/server_options.h"

namespace sis {

// What is to be said behind "--listen=..." of addresses that can't be any, or stand there twice;
// behind "--admin=..." and "--store=..." likewise. Empty if nothing.
std::string ListenProblem(const std::string& listen);
std::string AdminProblem(const std::string& admin);
std::string StoreProblem(const std::string& store);

// InvalidArgument names the flags of sis_server that don't go together, or the address or the store
// that can't be one. Whether an address is free, or a store is there, is not looked at.
absl::Status CheckOptions(const ServerOptions& options);

// InvalidArgument or NotFound names the flag whose file can't be read or understood: --identities,
// those of TLS, --proxy_certificate. A start says the same, but later.
absl::Status CheckFiles(const ServerOptions& options);

}  // namespace sis
