#include "server/admin/own_host.h"

#include <arpa/inet.h>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace sis {
namespace {

bool IsAddress(const std::string& host) {
  in_addr v4;
  return inet_pton(AF_INET, host.c_str(), &v4) == 1;
}

}  // namespace

bool IsOwnHost(absl::string_view host, const std::vector<std::string>& names) {
  if (host.empty()) return true;
  if (absl::StartsWith(host, "[")) return true;  // an IPv6 address: no name begins so
  std::string name = absl::AsciiStrToLower(host.substr(0, host.find(':')));
  if (absl::EndsWith(name, ".")) name.pop_back();
  if (IsAddress(name) || !absl::StrContains(name, '.') || absl::EndsWith(name, ".localhost")) {
    return true;
  }
  for (const std::string& own : names) {
    const std::string allowed = absl::AsciiStrToLower(own);
    if (absl::StartsWith(allowed, ".") ? absl::EndsWith(name, allowed) : name == allowed) {
      return true;
    }
  }
  return false;
}

}  // namespace sis
