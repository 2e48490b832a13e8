// How a client says who it is, and knows the server.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sis {

// Files are in PEM, and are read again when they change.
struct Credentials {
  // TLS; with `ca` or `certificate` it is on anyway. Not at Unix sockets.
  bool tls = false;
  // Of those whose certificates servers may have; empty: those that gRPC trusts.
  std::string ca = {};
  // The client's own certificate and its key, which may say who it is.
  std::string certificate = {};
  std::string key = {};
  // Says who the client is: at most one of the two.
  std::string token = {};
  std::string token_file = {};
  // Sends the token in plain text to other machines too. Whoever sees it may use it.
  bool plaintext_token = false;

  // Of SIS_TLS (1), SIS_CA_FILE, SIS_CERTIFICATE_FILE, SIS_KEY_FILE, SIS_TOKEN, SIS_TOKEN_FILE and
  // SIS_PLAINTEXT_TOKEN (1), as far as they are set.
  static Credentials FromEnvironment();

  bool has_tls() const { return tls || !ca.empty() || !certificate.empty(); }
  bool has_token() const { return !token.empty() || !token_file.empty(); }

  // InvalidArgument if they contradict each other, if a file can't be read or holds no token, or if
  // a token would travel to another machine in plain text.
  absl::Status CheckFor(absl::string_view address) const;
};

// The first word; empty if that can be no token.
std::string TokenIn(absl::string_view text);
// That of the file.
std::string ReadToken(const std::string& path);

}  // namespace sis
