// The security flags of a server.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/auth/roles.h"

namespace sis {

struct AuthOptions {
  // Paths of PEM files, read again when they change; empty: no TLS. In the file, any intermediate
  // certificates follow the server's certificate.
  std::string tls_certificate = {};
  std::string tls_key = {};
  // The authority that signs certificates of clients; empty: clients need no certificate.
  std::string tls_client_ca = {};
  // The certificate of a proxy in front. Only its expiry is read, for a metric. Empty: none.
  std::string proxy_certificate = {};
  // The file of server/auth/identities.h, read again when it changes; empty: none.
  std::string identities = {};
  // Role of clients whose certificate `identities` doesn't name; unset: such clients are refused.
  std::optional<Role> certificate_role = {};
  // True to serve everybody who can connect.
  bool insecure = false;
  // Period of checks of the files. gRPC uses whole seconds.
  absl::Duration reload_interval = absl::Seconds(10);

  bool has_tls() const { return !tls_certificate.empty(); }
  // Returns true if callers must authenticate.
  bool asks() const { return !identities.empty() || certificate_role.has_value(); }
};

// Returns InvalidArgument if flags contradict each other, or if other machines can connect to one
// of the addresses without TLS and authentication, and --insecure is not given. The message names
// the missing flags.
absl::Status CheckSecurity(const AuthOptions& options, std::span<const std::string> addresses);

}  // namespace sis
