#include "server/auth/addresses.h"

#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace sis {

bool IsUnixSocket(absl::string_view address) {
  return absl::StartsWith(address, "unix:") || absl::StartsWith(address, "unix-abstract:");
}

bool IsLocal(absl::string_view address) {
  if (IsUnixSocket(address)) return true;
  for (const absl::string_view scheme : {"dns:", "ipv4:", "ipv6:"}) {
    if (absl::ConsumePrefix(&address, scheme)) break;
  }
  absl::ConsumePrefix(&address, "///");
  const absl::string_view host = address.substr(0, address.rfind(':'));
  if (host == "localhost" || host == "[::1]") return true;
  // Accepts addresses such as 127.0.0.1, but no host name that begins with "127.".
  return absl::StartsWith(host, "127.") &&
         host.find_first_not_of("0123456789.") == absl::string_view::npos;
}

}  // namespace sis
