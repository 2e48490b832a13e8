// The files that the server's TLS is made of, as long as they make sense.
#pragma once

#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/auth/auth_options.h"

namespace sis {

// Copies in memory of what the files held when they last made sense. gRPC looks at these: it would
// end the process over a certificate or a key that is empty, which a file is for a moment when it
// is written in place.
class TlsFiles {
 public:
  // InvalidArgument names the flag whose file is no such thing, has expired, or is not the key of
  // the certificate.
  static absl::Status Check(const AuthOptions& options);

  // The same errors.
  static absl::StatusOr<std::unique_ptr<TlsFiles>> Open(const AuthOptions& options);

  // Reads the files again. Whether they have changed. InvalidArgument, and the copies stay as they
  // are, if a file is no such thing or key and certificate are not of each other.
  absl::StatusOr<bool> Reload();

  // When the certificate ends, or the first of several. A server that serves it longer is refused
  // by all who connect.
  absl::Time certificate_end() const { return certificate_end_; }

  // TLS 1.2 or later, with the files, which must outlive it, as they are when a client connects.
  // Where clients must have a certificate, those without, or with one that --tls_client_ca has not
  // signed, can't connect.
  std::shared_ptr<grpc::ServerCredentials> Credentials() const;
  // Where the copies are, for this process only. The last one is empty if clients need none.
  std::string certificate() const { return certificate_.path(); }
  std::string key() const { return key_.path(); }
  std::string client_ca() const { return texts_.client_ca.empty() ? "" : client_ca_.path(); }

 private:
  struct Texts {
    bool operator==(const Texts&) const = default;
    std::string certificate;
    std::string key;
    std::string client_ca;
  };
  struct Sound {
    Texts texts;
    absl::Time certificate_end;
  };

  // A file in memory. Whoever opens its path finds the whole of one text.
  class Copy {
   public:
    Copy() = default;
    ~Copy();
    Copy(const Copy&) = delete;
    Copy& operator=(const Copy&) = delete;

    absl::Status Write(absl::string_view text);
    std::string path() const;

   private:
    int descriptor_ = -1;
  };

  explicit TlsFiles(const AuthOptions& options) : options_(options) {}
  static absl::StatusOr<Sound> Read(const AuthOptions& options);

  const AuthOptions options_;
  Texts texts_;
  absl::Time certificate_end_;
  Copy certificate_;
  Copy key_;
  Copy client_ca_;
};

// InvalidArgument or NotFound if --proxy_certificate names a file that is none.
absl::Status CheckProxyCertificate(const AuthOptions& options);

// When the first certificate of a PEM file ends.
absl::StatusOr<absl::Time> CertificateExpiry(const std::string& path);

}  // namespace sis
