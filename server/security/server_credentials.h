// TLS for the server's connections.
#pragma once

#include <grpcpp/security/server_credentials.h>

#include <memory>

#include "server/security/security_options.h"
#include "server/security/tls_files.h"

namespace sis {

// TLS 1.2 or later, with the files, which must outlive it, as they are when a client connects.
// Where clients must have a certificate, those without, or with one that --tls_client_ca has not
// signed, can't connect.
std::shared_ptr<grpc::ServerCredentials> TlsServerCredentials(const SecurityOptions& options,
                                                              const TlsFiles& files);

}  // namespace sis
