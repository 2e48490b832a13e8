#include "server/auth/identities.h"

#include <openssl/sha.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace sis {
namespace {

// Shorter tokens can be guessed, and are probably another field in the wrong place.
constexpr size_t kMinTokenBytes = 16;
// The same limit as for a run's labels.
constexpr size_t kMaxIdentityBytes = 256;

absl::Status Wrong(absl::string_view what) { return absl::InvalidArgumentError(what); }

}  // namespace

absl::Status CheckIdentity(absl::string_view name) {
  if (name.size() > kMaxIdentityBytes) {
    return Wrong(
        absl::StrCat("an identity of ", name.size(), " bytes, more than ", kMaxIdentityBytes));
  }
  const bool is_visible =
      std::ranges::all_of(name, [](unsigned char c) { return absl::ascii_isprint(c); });
  if (!is_visible || name.empty() || name.front() == ' ' || name.back() == ' ') {
    return Wrong("the identity is not visible ASCII with spaces between");
  }
  return absl::OkStatus();
}

Identities::Digest Identities::DigestOf(absl::string_view token) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), digest.data());
  return digest;
}

absl::Status Identities::AddToken(const Digest& digest, Identity identity) {
  if (!tokens_.try_emplace(digest, std::move(identity)).second) {
    return Wrong("the token stands in an earlier line too");
  }
  return absl::OkStatus();
}

absl::Status Identities::AddLine(absl::string_view line) {
  const std::vector<absl::string_view> fields =
      absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  if (fields.size() != 4) {
    return Wrong(absl::StrCat(fields.size(),
                              " fields, must be 4: token, sha256 or certificate; what it says; an "
                              "identity; a role"));
  }
  const absl::string_view kind = fields[0];
  Identity identity{.name = std::string(fields[2]), .role = Role::kViewer};
  if (absl::Status status = CheckIdentity(identity.name); !status.ok()) return status;
  const std::optional<Role> role = ParseRole(fields[3]);
  if (!role.has_value()) {
    return Wrong("the role (field 4) is not viewer, worker, trainer or admin");
  }
  identity.role = *role;
  if (kind == "token") {
    if (fields[1].size() < kMinTokenBytes) {
      return Wrong(
          absl::StrCat("a token of ", fields[1].size(), " bytes, fewer than ", kMinTokenBytes));
    }
    return AddToken(DigestOf(fields[1]), std::move(identity));
  }
  if (kind == "sha256") {
    Digest digest;
    const bool hexadecimal =
        fields[1].size() == 2 * digest.size() &&
        std::ranges::all_of(fields[1], [](unsigned char c) { return absl::ascii_isxdigit(c); });
    if (!hexadecimal) return Wrong("sha256 takes 64 hexadecimal digits");
    const std::string bytes = absl::HexStringToBytes(fields[1]);
    std::ranges::copy(bytes, digest.begin());
    return AddToken(digest, std::move(identity));
  }
  if (kind == "certificate") {
    if (!certificates_.try_emplace(std::string(fields[1]), std::move(identity)).second) {
      return Wrong("the certificate stands in an earlier line too");
    }
    return absl::OkStatus();
  }
  return Wrong("the line (field 1) is none of token, sha256 and certificate");
}

absl::StatusOr<Identities> Identities::Parse(absl::string_view text) {
  Identities identities;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || absl::StartsWith(line, "#")) continue;
    if (absl::Status status = identities.AddLine(line); !status.ok()) {
      return Wrong(absl::StrCat("line ", number, ": ", status.message()));
    }
  }
  if (identities.size() == 0) return Wrong("it names nobody");
  return identities;
}

const Identity* Identities::FindToken(absl::string_view token) const {
  const auto found = tokens_.find(DigestOf(token));
  return found == tokens_.end() ? nullptr : &found->second;
}

const Identity* Identities::FindCertificate(absl::string_view name) const {
  const auto found = certificates_.find(name);
  return found == certificates_.end() ? nullptr : &found->second;
}

}  // namespace sis
