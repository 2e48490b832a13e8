#include "server/main/security_flags.h"

#include "absl/flags/flag.h"
#include "absl/time/time.h"

ABSL_FLAG(std::string, tls_certificate, "",
          "file in PEM: the certificate that TCP connections are served with over TLS, then those "
          "between it and its root; read again when it changes (docs/security.md)");
ABSL_FLAG(std::string, tls_key, "", "file in PEM: the private key of --tls_certificate");
ABSL_FLAG(std::string, tls_client_ca, "",
          "file in PEM: who signs certificates of clients; a client needs one then, or a token");
ABSL_FLAG(std::string, proxy_certificate, "",
          "file in PEM: the certificate of a proxy in front, which takes the calls in place of TLS "
          "here; only for the metric that says when it ends");
ABSL_FLAG(std::string, identities, "",
          "file of tokens and certificates, with the identity and role of each; read again when it "
          "changes; every call needs one of them then (docs/security.md)");
ABSL_FLAG(std::string, certificate_role, "",
          "role of clients with a certificate that --identities does not name: viewer, worker, "
          "trainer or admin; empty: they are refused");
ABSL_FLAG(bool, insecure, false,
          "serve addresses that other machines can reach without TLS or without asking who calls, "
          "since something else protects them");
ABSL_FLAG(absl::Duration, reload_interval, sis::SecurityOptions().reload_interval,
          "how often certificates, keys and identities are looked at for changes, at least 1s");
ABSL_FLAG(int, max_streams_per_connection, sis::ConnectionLimits().max_streams_per_connection,
          "most calls of one connection at a time; others wait in the client");
ABSL_FLAG(int64_t, grpc_memory_bytes, sis::ConnectionLimits().grpc_memory_bytes,
          "for connections, and messages that come in or are being answered; beyond it idle "
          "connections are closed and calls are ended; at least --max_message_bytes");
ABSL_FLAG(absl::Duration, max_connection_age, sis::ConnectionLimits().max_connection_age,
          "a client has to connect anew after so long, 1h for instance; its calls go on to their "
          "end; inf: never");
ABSL_FLAG(bool, reflection, false,
          "serve grpc.reflection, for grpcurl and the like, to everybody who can connect");

namespace sis {

std::string SecurityFlagProblem(absl::string_view flag) {
  if (flag == "certificate_role") {
    const std::string role = absl::GetFlag(FLAGS_certificate_role);
    const bool known = role.empty() || ParseRole(role).has_value();
    return known ? "" : " is none of viewer, worker, trainer and admin";
  }
  if (flag == "max_streams_per_connection") {
    return absl::GetFlag(FLAGS_max_streams_per_connection) < 1 ? " is below 1" : "";
  }
  if (flag == "grpc_memory_bytes") {
    return absl::GetFlag(FLAGS_grpc_memory_bytes) < 1 ? " is below 1" : "";
  }
  if (flag == "max_connection_age") {
    return absl::GetFlag(FLAGS_max_connection_age) < absl::Seconds(1) ? " is below 1s" : "";
  }
  if (flag == "reload_interval") {
    return absl::GetFlag(FLAGS_reload_interval) < absl::Seconds(1) ? " is below 1s" : "";
  }
  return "";
}

SecurityOptions SecurityFromFlags() {
  return {.tls_certificate = absl::GetFlag(FLAGS_tls_certificate),
          .tls_key = absl::GetFlag(FLAGS_tls_key),
          .tls_client_ca = absl::GetFlag(FLAGS_tls_client_ca),
          .proxy_certificate = absl::GetFlag(FLAGS_proxy_certificate),
          .identities = absl::GetFlag(FLAGS_identities),
          .certificate_role = ParseRole(absl::GetFlag(FLAGS_certificate_role)),
          .insecure = absl::GetFlag(FLAGS_insecure),
          .reload_interval = absl::GetFlag(FLAGS_reload_interval)};
}

ConnectionLimits ConnectionLimitsFromFlags() {
  return {.max_streams_per_connection = absl::GetFlag(FLAGS_max_streams_per_connection),
          .grpc_memory_bytes = absl::GetFlag(FLAGS_grpc_memory_bytes),
          .max_connection_age = absl::GetFlag(FLAGS_max_connection_age),
          .reflection = absl::GetFlag(FLAGS_reflection)};
}

}  // namespace sis
