#include "server/auth/tls_files.h"

#include <fcntl.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <initializer_list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/auth/regular_file.h"

namespace sis {
namespace {

// Period of gRPC's checks of the copies, which are in memory.
constexpr unsigned kLookSeconds = 1;

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

// Returns a view of the text.
Bio Open(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// Returns the first certificate in the text.
absl::StatusOr<Certificate> ParseCertificate(const std::string& path, const std::string& text) {
  Certificate certificate(PEM_read_bio_X509(Open(text).get(), nullptr, nullptr, nullptr));
  if (certificate == nullptr) return Wrong(path, "no certificate in PEM");
  return certificate;
}

absl::StatusOr<Key> ParseKey(const std::string& path, const std::string& text) {
  // Encrypted keys fail, because nobody can enter a password.
  const auto no_password = [](char*, int, int, void*) { return -1; };
  Key key(PEM_read_bio_PrivateKey(Open(text).get(), nullptr, no_password, nullptr));
  if (key == nullptr) return Wrong(path, "no private key in PEM, or one with a password");
  return key;
}

absl::Status OfFlag(absl::string_view flag, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("--", flag, ": ", status.message()));
}

absl::StatusOr<absl::Time> EndOf(const std::string& path, const Certificate& certificate) {
  std::tm end{};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate.get()), &end) != 1) {
    return Wrong(path, "the certificate's end is no time");
  }
  return absl::FromTM(end, absl::UTCTimeZone());
}

absl::Status Failed(absl::string_view call) {
  return absl::InternalError(absl::StrCat(call, ": ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<TlsFiles::Sound> TlsFiles::Read(const AuthOptions& options) {
  struct File {
    const char* flag;
    const std::string& path;
    std::string& text;
  };
  Texts texts;
  for (const File& file :
       std::initializer_list<File>{{"tls_certificate", options.tls_certificate, texts.certificate},
                                   {"tls_key", options.tls_key, texts.key},
                                   {"tls_client_ca", options.tls_client_ca, texts.client_ca}}) {
    if (file.path.empty()) continue;
    absl::StatusOr<std::string> text = ReadRegularFile(file.path);
    if (!text.ok()) return OfFlag(file.flag, text.status());
    file.text = *std::move(text);
  }
  const auto certificate = ParseCertificate(options.tls_certificate, texts.certificate);
  if (!certificate.ok()) return OfFlag("tls_certificate", certificate.status());
  const absl::StatusOr<absl::Time> end = EndOf(options.tls_certificate, *certificate);
  if (!end.ok()) return OfFlag("tls_certificate", end.status());
  const absl::StatusOr<Key> key = ParseKey(options.tls_key, texts.key);
  if (!key.ok()) return OfFlag("tls_key", key.status());
  if (X509_check_private_key(certificate->get(), key->get()) != 1) {
    return OfFlag("tls_key",
                  Wrong(options.tls_key, absl::StrCat("not the key of ", options.tls_certificate)));
  }
  if (!options.tls_client_ca.empty()) {
    const auto client_ca = ParseCertificate(options.tls_client_ca, texts.client_ca);
    if (!client_ca.ok()) return OfFlag("tls_client_ca", client_ca.status());
  }
  return Sound{std::move(texts), *end};
}

absl::Status TlsFiles::Check(const AuthOptions& options) {
  const absl::StatusOr<Sound> sound = Read(options);
  if (!sound.ok()) return sound.status();
  // A running server may continue with an expired certificate, but none starts with one.
  if (sound->certificate_end >= absl::Now()) return absl::OkStatus();
  return OfFlag("tls_certificate", Wrong(options.tls_certificate, "the certificate has expired"));
}

absl::StatusOr<std::unique_ptr<TlsFiles>> TlsFiles::Open(const AuthOptions& options) {
  if (absl::Status status = Check(options); !status.ok()) return status;
  std::unique_ptr<TlsFiles> files(new TlsFiles(options));
  if (absl::Status status = files->Reload().status(); !status.ok()) return status;
  return files;
}

absl::StatusOr<bool> TlsFiles::Reload() {
  absl::StatusOr<Sound> sound = Read(options_);
  if (!sound.ok()) return sound.status();
  Texts& texts = sound->texts;
  if (texts == texts_) return false;
  for (const auto& [copy, text] :
       {std::pair(&key_, &texts.key), std::pair(&certificate_, &texts.certificate),
        std::pair(&client_ca_, &texts.client_ca)}) {
    if (absl::Status status = copy->Write(*text); !status.ok()) return status;
  }
  texts_ = std::move(texts);
  certificate_end_ = sound->certificate_end;
  return true;
}

std::shared_ptr<grpc::ServerCredentials> TlsFiles::Credentials() const {
  grpc::experimental::TlsServerCredentialsOptions tls(
      std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
          key(), certificate(), client_ca(), kLookSeconds));
  tls.watch_identity_key_cert_pairs();
  if (options_.tls_client_ca.empty()) {
    tls.set_cert_request_type(GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
  } else {
    tls.watch_root_certs();
    // With identities, a token can replace the certificate.
    tls.set_cert_request_type(options_.identities.empty()
                                  ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                  : GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return grpc::experimental::TlsServerCredentials(tls);
}

TlsFiles::Copy::~Copy() {
  if (descriptor_ >= 0) close(descriptor_);
}

absl::Status TlsFiles::Copy::Write(absl::string_view text) {
  const int written = memfd_create("sis-tls", MFD_CLOEXEC);
  if (written < 0) return Failed("memfd_create");
  while (!text.empty()) {
    const ssize_t size = write(written, text.data(), text.size());
    if (size < 0) {
      absl::Status failed = Failed("write");
      close(written);
      return failed;
    }
    text.remove_prefix(static_cast<size_t>(size));
  }
  if (descriptor_ < 0) {
    descriptor_ = written;
    return absl::OkStatus();
  }
  // Atomically replaces the file behind the path.
  const int replaced = dup3(written, descriptor_, O_CLOEXEC);
  absl::Status status = replaced < 0 ? Failed("dup3") : absl::OkStatus();
  close(written);
  return status;
}

std::string TlsFiles::Copy::path() const { return absl::StrCat("/proc/self/fd/", descriptor_); }

absl::Status CheckProxyCertificate(const AuthOptions& options) {
  if (options.proxy_certificate.empty()) return absl::OkStatus();
  return OfFlag("proxy_certificate", CertificateExpiry(options.proxy_certificate).status());
}

absl::StatusOr<absl::Time> CertificateExpiry(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadRegularFile(path);
  if (!text.ok()) return text.status();
  const absl::StatusOr<Certificate> certificate = ParseCertificate(path, *text);
  if (!certificate.ok()) return certificate.status();
  return EndOf(path, *certificate);
}

}  // namespace sis
