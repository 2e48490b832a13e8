// No address of another machine is mistaken for one of this machine.
#include <netdb.h>
#include <netinet/in.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/auth/addresses.h"

namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

// Returns true if the system parses the host as a numeric address outside the loopback interface.
bool IsElsewhere(const std::string& host) {
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return false;
  bool elsewhere = false;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    if (at->ai_family == AF_INET) {
      const auto* address = reinterpret_cast<const sockaddr_in*>(at->ai_addr);
      elsewhere |= ntohl(address->sin_addr.s_addr) >> 24 != 127;
    } else {
      const auto* address = reinterpret_cast<const sockaddr_in6*>(at->ai_addr);
      elsewhere |= !IN6_IS_ADDR_LOOPBACK(&address->sin6_addr);
    }
  }
  freeaddrinfo(found);
  return elsewhere;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string host(reinterpret_cast<const char*>(data), size);
  const std::string address = absl::StrCat(host, ":50051");
  if (sis::IsUnixSocket(address)) {
    Require(sis::IsLocal(address) && absl::StartsWith(address, "unix"));
  } else if (sis::IsLocal(address)) {
    Require(!IsElsewhere(host.substr(host.find_last_of(":/") + 1)));
    // No other machine before or after the host.
    Require(!sis::IsLocal(absl::StrCat(host, ".example.org:50051")));
    Require(!sis::IsLocal(absl::StrCat(host, ":50051,10.0.0.1:50051")));
    Require(!sis::IsLocal(absl::StrCat("//10.0.0.1/", host, ":50051")));
  }
  return 0;
}
