// How a server is protected: what its flags say.
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
  // What a proxy in front shows clients, looked at for its end only; empty: there is none, or it
  // has no certificate.
  std::string proxy_certificate = {};
  // The file of server/auth/identities.h, read again when it changes; empty: none.
  std::string identities = {};
  // Role of clients with a certificate that `identities` doesn't name; unset: they are refused.
  std::optional<Role> certificate_role = {};
  // Serves everybody who can reach it.
  bool insecure = false;
  // How often the files are looked at. gRPC takes whole seconds.
  absl::Duration reload_interval = absl::Seconds(10);

  bool has_tls() const { return !tls_certificate.empty(); }
  // Whether callers have to say who they are.
  bool asks() const { return !identities.empty() || certificate_role.has_value(); }
};

// InvalidArgument if flags contradict each other, or if other machines could connect to one of the
// addresses and neither TLS and identities nor --insecure are given. Says which flags would help.
absl::Status CheckSecurity(const AuthOptions& options, std::span<const std::string> addresses);

}  // namespace sis
