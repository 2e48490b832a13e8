#include "client/cli/servers_behind.h"

// Debian 12 has what later versions would have called otherwise.
#define CARES_NO_DEPRECATED
#include <ares.h>
#include <netdb.h>
#include <sys/select.h>

#include <array>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/addresses/addresses.h"

namespace sis {
namespace {

// Of one try; the resolver makes a few.
constexpr int kTimeoutMilliseconds = 2000;
constexpr int kTries = 2;

struct Found {
  bool done = false;
  std::set<std::string> ipv4, ipv6;
};

std::string Numbers(const ares_addrinfo_node& node) {
  std::array<char, NI_MAXHOST> host;
  const int error = getnameinfo(node.ai_addr, node.ai_addrlen, host.data(), host.size(), nullptr, 0,
                                NI_NUMERICHOST);
  return error == 0 ? host.data() : "";
}

void OnAnswer(void* argument, int status, int, ares_addrinfo* answer) {
  auto& found = *static_cast<Found*>(argument);
  found.done = true;
  if (status != ARES_SUCCESS) return;
  for (const ares_addrinfo_node* node = answer->nodes; node != nullptr; node = node->ai_next) {
    const std::string numbers = Numbers(*node);
    if (numbers.empty()) continue;
    (node->ai_family == AF_INET6 ? found.ipv6 : found.ipv4).insert(numbers);
  }
  ares_freeaddrinfo(answer);
}

void Await(ares_channel channel, const Found& found) {
  while (!found.done) {
    fd_set readers, writers;
    FD_ZERO(&readers);
    FD_ZERO(&writers);
    const int count = ares_fds(channel, &readers, &writers);
    if (count == 0) return;
    timeval wait;
    select(count, &readers, &writers, nullptr, ares_timeout(channel, nullptr, &wait));
    ares_process(channel, &readers, &writers);
  }
}

Found LookUp(const LookedUpName& name) {
  Found found;
  if (ares_library_init(ARES_LIB_INIT_ALL) != ARES_SUCCESS) return found;
  ares_options options = {};
  options.timeout = kTimeoutMilliseconds;
  options.tries = kTries;
  ares_channel channel;
  if (ares_init_options(&channel, &options, ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES) == ARES_SUCCESS) {
    if (name.dns_server.empty() ||
        ares_set_servers_ports_csv(channel, name.dns_server.c_str()) == ARES_SUCCESS) {
      ares_addrinfo_hints hints = {};
      hints.ai_family = AF_UNSPEC;
      ares_getaddrinfo(channel, name.host.c_str(), nullptr, &hints, OnAnswer, &found);
      Await(channel, found);
    }
    ares_destroy(channel);
  }
  ares_library_cleanup();
  return found;
}

}  // namespace

std::optional<LookedUpName> NameToLookUp(absl::string_view address) {
  if (IsLocal(address)) return std::nullopt;
  LookedUpName name;
  if (absl::ConsumePrefix(&address, "dns:") && absl::ConsumePrefix(&address, "//")) {
    const size_t end = address.find('/');
    if (end == absl::string_view::npos) return std::nullopt;
    name.dns_server = std::string(address.substr(0, end));
    address.remove_prefix(end + 1);
  }
  const size_t colon = address.find(':');
  // Another colon: of IPv6, or of another scheme.
  if (colon == absl::string_view::npos || colon != address.rfind(':')) return std::nullopt;
  name.host = std::string(address.substr(0, colon));
  name.port = std::string(address.substr(colon + 1));
  const bool numbers = name.host.find_first_not_of("0123456789.") == std::string::npos;
  if (numbers || name.port.empty()) return std::nullopt;
  return name;
}

std::vector<std::string> ServersBehind(absl::string_view address) {
  const std::optional<LookedUpName> name = NameToLookUp(address);
  if (!name.has_value()) return {};
  const Found found = LookUp(*name);
  std::vector<std::string> servers;
  if (found.ipv4.size() >= found.ipv6.size()) {
    for (const std::string& host : found.ipv4) {
      servers.push_back(absl::StrCat(host, ":", name->port));
    }
  } else {
    for (const std::string& host : found.ipv6) {
      servers.push_back(absl::StrCat("[", host, "]:", name->port));
    }
  }
  return servers;
}

}  // namespace sis
