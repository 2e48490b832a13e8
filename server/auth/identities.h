// The file of identities: tokens and certificate names, each with an identity and a role.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/auth/roles.h"

namespace sis {

// Returns InvalidArgument unless the name has 1 to 256 bytes of visible ASCII, with single or
// several spaces only between them. Identities own runs.
absl::Status CheckIdentity(absl::string_view name);

// Several tokens, even with different roles, may share an identity.
struct Identity {
  std::string name;
  Role role;

  friend bool operator==(const Identity&, const Identity&) = default;
};

// One line of the file is
//   token TOKEN IDENTITY ROLE
//   sha256 DIGEST IDENTITY ROLE         of a token, in hexadecimal
//   certificate NAME IDENTITY ROLE      its subject's common name, or an alternative name
// with spaces or tabs between; what follows # at the start of a line is a comment.
class Identities {
 public:
  // Returns InvalidArgument, naming the line, for an invalid file. No message contains a token.
  static absl::StatusOr<Identities> Parse(absl::string_view text);

  // Returns null if there is no such token. The duration depends on the token's SHA-256 only.
  const Identity* FindToken(absl::string_view token) const;
  const Identity* FindCertificate(absl::string_view name) const;

  int64_t size() const { return static_cast<int64_t>(tokens_.size() + certificates_.size()); }

 private:
  using Digest = std::array<unsigned char, 32>;

  static Digest DigestOf(absl::string_view token);
  absl::Status AddLine(absl::string_view line);
  absl::Status AddToken(const Digest& digest, Identity identity);

  absl::flat_hash_map<Digest, Identity> tokens_;  // by the digest of the token
  absl::flat_hash_map<std::string, Identity> certificates_;
};

}  // namespace sis
