#include "server/admin/authorization.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace sis {
namespace {

std::string AsBearer(absl::string_view header) {
  constexpr absl::string_view kBasic = "Basic ";
  std::string decoded;
  if (!absl::StartsWithIgnoreCase(header, kBasic) ||
      !absl::Base64Unescape(header.substr(kBasic.size()), &decoded)) {
    return std::string(header);
  }
  return absl::StrCat("Bearer ", decoded.substr(decoded.find(':') + 1));
}

}  // namespace

absl::StatusOr<std::string> AuthorizationOfCall(absl::string_view header) {
  std::string authorization = AsBearer(header);
  // gRPC would end the process over what can't be metadata.
  if (!std::ranges::all_of(authorization, [](unsigned char c) { return absl::ascii_isprint(c); })) {
    return absl::UnauthenticatedError("authorization: not printable ASCII");
  }
  return authorization;
}

}  // namespace sis
