#include "server/security/server_credentials.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <ctime>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/security/read_file.h"

namespace sis {
namespace {

template <auto kFree>
struct Free {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using Bio = std::unique_ptr<BIO, Free<BIO_free>>;
using Certificate = std::unique_ptr<X509, Free<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;

absl::Status Wrong(const std::string& path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

absl::StatusOr<Bio> Open(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return text.status();
  Bio bio(BIO_new(BIO_s_mem()));
  BIO_write(bio.get(), text->data(), static_cast<int>(text->size()));
  return bio;
}

// The first in the file.
absl::StatusOr<Certificate> ReadCertificate(const std::string& path) {
  const absl::StatusOr<Bio> bio = Open(path);
  if (!bio.ok()) return bio.status();
  Certificate certificate(PEM_read_bio_X509(bio->get(), nullptr, nullptr, nullptr));
  if (certificate == nullptr) return Wrong(path, "no certificate in PEM");
  return certificate;
}

absl::StatusOr<Key> ReadKey(const std::string& path) {
  const absl::StatusOr<Bio> bio = Open(path);
  if (!bio.ok()) return bio.status();
  // Nobody is there to be asked for a password.
  const auto no_password = [](char*, int, int, void*) { return -1; };
  Key key(PEM_read_bio_PrivateKey(bio->get(), nullptr, no_password, nullptr));
  if (key == nullptr) return Wrong(path, "no private key in PEM, or one with a password");
  return key;
}

absl::Status OfFlag(absl::string_view flag, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("--", flag, ": ", status.message()));
}

}  // namespace

absl::Status CheckTlsFiles(const SecurityOptions& options) {
  const absl::StatusOr<Certificate> certificate = ReadCertificate(options.tls_certificate);
  if (!certificate.ok()) return OfFlag("tls_certificate", certificate.status());
  const absl::StatusOr<Key> key = ReadKey(options.tls_key);
  if (!key.ok()) return OfFlag("tls_key", key.status());
  if (X509_check_private_key(certificate->get(), key->get()) != 1) {
    return OfFlag("tls_key",
                  Wrong(options.tls_key, absl::StrCat("not the key of ", options.tls_certificate)));
  }
  if (X509_cmp_current_time(X509_get0_notAfter(certificate->get())) < 0) {
    return OfFlag("tls_certificate", Wrong(options.tls_certificate, "the certificate has expired"));
  }
  if (options.tls_client_ca.empty()) return absl::OkStatus();
  return OfFlag("tls_client_ca", ReadCertificate(options.tls_client_ca).status());
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> TlsServerCredentials(
    const SecurityOptions& options) {
  if (absl::Status status = CheckTlsFiles(options); !status.ok()) return status;
  const auto seconds = static_cast<unsigned>(absl::ToInt64Seconds(options.reload_interval));
  grpc::experimental::TlsServerCredentialsOptions tls(
      std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
          options.tls_key, options.tls_certificate, options.tls_client_ca, seconds));
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

absl::StatusOr<absl::Time> CertificateExpiry(const std::string& path) {
  const absl::StatusOr<Certificate> certificate = ReadCertificate(path);
  if (!certificate.ok()) return certificate.status();
  std::tm end{};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate->get()), &end) != 1) {
    return Wrong(path, "the certificate's end is no time");
  }
  return absl::FromTM(end, absl::UTCTimeZone());
}

}  // namespace sis
