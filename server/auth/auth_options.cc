#include "server/auth/auth_options.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/auth/addresses.h"

namespace sis {
namespace {

absl::Status Wrong(absl::string_view what) { return absl::InvalidArgumentError(what); }

}  // namespace

absl::Status CheckSecurity(const AuthOptions& options, std::span<const std::string> addresses) {
  if (options.tls_certificate.empty() != options.tls_key.empty()) {
    return Wrong("--tls_certificate and --tls_key go together");
  }
  if (!options.tls_client_ca.empty() && !options.has_tls()) {
    return Wrong("--tls_client_ca needs --tls_certificate and --tls_key");
  }
  if (options.certificate_role.has_value() && options.tls_client_ca.empty()) {
    return Wrong("--certificate_role needs --tls_client_ca");
  }
  if (!options.tls_client_ca.empty() && !options.asks()) {
    return Wrong(
        "--tls_client_ca says who clients are, but not what they may do: give --identities or "
        "--certificate_role too");
  }
  if (!options.proxy_certificate.empty() && options.has_tls()) {
    return Wrong("--proxy_certificate goes in place of --tls_certificate and --tls_key");
  }
  if (options.reload_interval < absl::Seconds(1)) return Wrong("--reload_interval is below 1s");
  if (options.insecure || (options.has_tls() && options.asks())) return absl::OkStatus();
  for (const std::string& address : addresses) {
    if (IsLocal(address)) continue;
    const absl::string_view lacking =
        options.has_tls() ? "nobody has to say who they are: give --identities or --tls_client_ca"
        : options.asks() ? "tokens would travel in plain text: give --tls_certificate and --tls_key"
                         : "whoever reaches it may do everything: give --tls_certificate, "
                           "--tls_key and --identities";
    return Wrong(absl::StrCat("--listen=", address, ": other machines can connect, and ", lacking,
                              "; or --insecure, if something else protects it (docs/security.md)"));
  }
  return absl::OkStatus();
}

}  // namespace sis
