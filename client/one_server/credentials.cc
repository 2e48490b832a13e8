#include "client/one_server/credentials.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/addresses/addresses.h"
#include "client/files/regular_file.h"

namespace sis {
namespace {

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// gRPC ends the process when a call has anything else in its metadata.
bool IsToken(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isgraph);
}

}  // namespace

Credentials Credentials::FromEnvironment() {
  return {.tls = Environment("SIS_TLS") == "1",
          .ca = Environment("SIS_CA_FILE"),
          .certificate = Environment("SIS_CERTIFICATE_FILE"),
          .key = Environment("SIS_KEY_FILE"),
          .token = Environment("SIS_TOKEN"),
          .token_file = Environment("SIS_TOKEN_FILE"),
          .plaintext_token = Environment("SIS_PLAINTEXT_TOKEN") == "1"};
}

absl::Status Credentials::CheckFor(absl::string_view address) const {
  if (certificate.empty() != key.empty()) {
    return absl::InvalidArgumentError("credentials: certificate and key go together");
  }
  if (!token.empty() && !token_file.empty()) {
    return absl::InvalidArgumentError("credentials: token and token_file: at most one of them");
  }
  if (!token.empty() && !IsToken(token)) {
    return absl::InvalidArgumentError(
        "credentials: token: has to be visible ASCII, without spaces");
  }
  for (const std::string& path : {ca, certificate, key, token_file}) {
    if (path.empty()) continue;
    const absl::StatusOr<std::string> text = ReadRegularFile(path);
    if (!text.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("credentials: ", text.status().message()));
    }
    if (text->empty()) {
      return absl::InvalidArgumentError(absl::StrCat("credentials: ", path, " is empty"));
    }
  }
  if (!token_file.empty() && ReadToken(token_file).empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("credentials: ", token_file, " holds no token, which is visible ASCII"));
  }
  if (has_token() && !has_tls() && !plaintext_token && !IsLocal(address)) {
    return absl::InvalidArgumentError(
        absl::StrCat("credentials: the token would travel to ", std::string(address),
                     " in plain text: give tls or ca, or plaintext_token to send it all the same"));
  }
  return absl::OkStatus();
}

std::string TokenIn(absl::string_view text) {
  const absl::string_view words = absl::StripAsciiWhitespace(text);
  const absl::string_view word = words.substr(0, words.find_first_of(" \t\n\v\f\r"));
  return IsToken(word) ? std::string(word) : "";
}

std::string ReadToken(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadRegularFile(path);
  return text.ok() ? TokenIn(*text) : "";
}

}  // namespace sis
