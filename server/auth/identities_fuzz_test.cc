// Any bytes as a file of identities give either exactly its identities, or an error that names a
// line and contains no token.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "server/auth/identities.h"

namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

// Returns the fields of every line that is neither empty nor a comment.
std::vector<std::vector<std::string>> Lines(absl::string_view text) {
  std::vector<std::vector<std::string>> lines;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line[0] == '#') continue;
    lines.push_back(absl::StrSplit(line, absl::ByAnyChar("\t "), absl::SkipEmpty()));
  }
  return lines;
}

void RequireIdentity(const sis::Identity* found, const std::vector<std::string>& line) {
  Require(found != nullptr && found->name == line[2] && found->role == sis::ParseRole(line[3]));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const std::vector<std::vector<std::string>> lines = Lines(text);
  const absl::StatusOr<sis::Identities> identities = sis::Identities::Parse(text);
  if (!identities.ok()) {
    Require(absl::IsInvalidArgument(identities.status()));
    for (const std::vector<std::string>& line : lines) {
      for (const std::string& field : line) {
        // Every field that is long enough to be a token.
        if (field.size() >= 16) Require(!absl::StrContains(identities.status().message(), field));
      }
    }
    return 0;
  }
  Require(identities->size() == static_cast<int64_t>(lines.size()));
  for (const std::vector<std::string>& line : lines) {
    Require(line.size() == 4);
    if (line[0] == "token") {
      Require(line[1].size() >= 16);
      RequireIdentity(identities->FindToken(line[1]), line);
      Require(identities->FindToken(line[1] + " ") == nullptr);
    } else if (line[0] == "certificate") {
      RequireIdentity(identities->FindCertificate(line[1]), line);
    } else {
      Require(line[0] == "sha256" && absl::HexStringToBytes(line[1]).size() == 32);
    }
  }
  return 0;
}
