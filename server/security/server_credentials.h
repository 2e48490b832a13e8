// TLS for the server's connections.
#pragma once

#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/security/security_options.h"

namespace sis {

// TLS 1.2 or later, with files that are read again when they change. Where clients must have a
// certificate, those without, or with one that --tls_client_ca has not signed, can't connect.
// InvalidArgument names the flag whose file is no such thing, has expired, or is not the key of the
// certificate.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> TlsServerCredentials(
    const SecurityOptions& options);

// The same errors, with nothing made: what gRPC itself would not say, and refuse every connection.
absl::Status CheckTlsFiles(const SecurityOptions& options);

// When the first certificate of a PEM file ends. A server that serves longer than that is refused
// by all who connect.
absl::StatusOr<absl::Time> CertificateExpiry(const std::string& path);

}  // namespace sis
