// The files of the server's TLS, in their last valid version.
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

// Keeps copies of the last valid files in memory, which gRPC reads. gRPC would abort the process
// for an empty certificate or key. A file that is written in place is empty for a moment.
class TlsFiles {
 public:
  // Returns InvalidArgument, naming the flag, if a file is invalid or expired, or the key doesn't
  // match the certificate.
  static absl::Status Check(const AuthOptions& options);

  // Returns the errors of Check.
  static absl::StatusOr<std::unique_ptr<TlsFiles>> Open(const AuthOptions& options);

  // Reads the files again, and returns true if they have changed. Returns InvalidArgument, and
  // keeps the copies, if a file is invalid or key and certificate don't match.
  absl::StatusOr<bool> Reload();

  // Returns the expiry of the certificate, the earliest of several. Clients refuse the server
  // afterwards.
  absl::Time certificate_end() const { return certificate_end_; }

  // Returns credentials for TLS 1.2 or later that read the copies at each connection. The object
  // must outlive them. If clients must have a certificate, clients without one that --tls_client_ca
  // has signed can't connect.
  std::shared_ptr<grpc::ServerCredentials> Credentials() const;
  // Return the paths of the copies, valid in this process only. The last one is empty if clients
  // need no certificate.
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

  // A file in memory. Opening its path always gives one complete text.
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

// Returns InvalidArgument or NotFound if --proxy_certificate is not the path of a certificate.
absl::Status CheckProxyCertificate(const AuthOptions& options);

// Returns the expiry of the first certificate in a PEM file.
absl::StatusOr<absl::Time> CertificateExpiry(const std::string& path);

}  // namespace sis
