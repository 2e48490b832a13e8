#include "server/security/server_credentials.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

namespace sis {
namespace {

// How often gRPC looks at the copies, which are in memory.
constexpr unsigned kLookSeconds = 1;

}  // namespace

std::shared_ptr<grpc::ServerCredentials> TlsServerCredentials(const SecurityOptions& options,
                                                              const TlsFiles& files) {
  grpc::experimental::TlsServerCredentialsOptions tls(
      std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
          files.key(), files.certificate(), files.client_ca(), kLookSeconds));
  tls.watch_identity_key_cert_pairs();
  if (options.tls_client_ca.empty()) {
    tls.set_cert_request_type(GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
  } else {
    tls.watch_root_certs();
    // A token will do in its place, where there may be tokens.
    tls.set_cert_request_type(options.identities.empty()
                                  ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                  : GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return grpc::experimental::TlsServerCredentials(tls);
}

}  // namespace sis
