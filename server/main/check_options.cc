#include "server/main/check_options.h"

#include <set>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "server/auth/authenticator.h"
#include "server/auth/tls_files.h"
#include "server/store/open_store.h"

namespace sis {
namespace {

// Maximum length of a path in struct sockaddr_un, without the terminating zero.
constexpr size_t kLongestSocketPath = 107;

absl::Status Refuse(absl::string_view flag, absl::string_view value, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", value, why));
}

// Returns why the address is not a HOST:PORT; empty if it is one.
std::string HostAndPortProblem(absl::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon == address.npos || colon == 0) return "is not HOST:PORT";
  uint32_t port = 0;
  if (!absl::SimpleAtoi(address.substr(colon + 1), &port) || port > 65535) {
    return "has no port in [0, 65535]";
  }
  const absl::string_view host = address.substr(0, colon);
  if (absl::StrContains(host, ":") && !(absl::StartsWith(host, "[") && absl::EndsWith(host, "]"))) {
    return "needs [] around the IPv6 address";
  }
  return "";
}

std::string AddressProblem(absl::string_view address) {
  if (absl::ConsumePrefix(&address, "unix:")) {
    absl::ConsumePrefix(&address, "//");
    if (address.empty()) return "is a Unix socket without a path";
    if (address.size() > kLongestSocketPath) return "has a path of more than 107 bytes";
    return "";
  }
  if (absl::ConsumePrefix(&address, "unix-abstract:")) {
    return address.empty() ? "is a Unix socket without a name" : "";
  }
  return HostAndPortProblem(address);
}

absl::Status CheckAddresses(const ServerOptions& options) {
  if (const std::string problem = ListenProblem(options.listen); !problem.empty()) {
    return Refuse("listen", options.listen, problem);
  }
  if (const std::string problem = AdminProblem(options.admin); !problem.empty()) {
    return Refuse("admin", options.admin, problem);
  }
  const std::vector<absl::string_view> addresses = absl::StrSplit(options.listen, ',');
  if (!absl::EndsWith(options.admin, ":0") && absl::c_linear_search(addresses, options.admin)) {
    return Refuse("admin", options.admin, " is an address of --listen too");
  }
  return absl::OkStatus();
}

}  // namespace

std::string ListenProblem(const std::string& listen) {
  std::set<absl::string_view> seen;
  for (const absl::string_view address : absl::StrSplit(listen, ',')) {
    if (const std::string problem = AddressProblem(address); !problem.empty()) {
      return absl::StrCat(": '", address, "' ", problem);
    }
    if (!absl::EndsWith(address, ":0") && !seen.insert(address).second) {
      return absl::StrCat(": '", address, "' is named twice");
    }
  }
  return "";
}

std::string AdminProblem(const std::string& admin) {
  if (admin.empty()) return "";
  if (absl::StartsWith(admin, "[")) return " is an IPv6 address; must be a name or an IPv4 address";
  const std::string problem = HostAndPortProblem(admin);
  return problem.empty() ? "" : absl::StrCat(" ", problem);
}

std::string StoreProblem(const std::string& store) {
  const absl::Status status = CheckStore(store);
  return status.ok() ? "" : absl::StrCat(": ", status.message());
}

absl::Status CheckOptions(const ServerOptions& options) {
  if (absl::Status status = CheckAddresses(options); !status.ok()) return status;
  const std::vector<std::string> addresses = absl::StrSplit(options.listen, ',');
  if (absl::Status status = CheckSecurity(options.security, addresses); !status.ok()) return status;
  if (options.backend == BackendKind::kCpu && options.device_cache_bytes.value_or(0) > 0) {
    return Refuse("device_cache_bytes", absl::StrCat(*options.device_cache_bytes),
                  " goes with CUDA, and --backend is cpu");
  }
  if (const int64_t bytes = options.connections.grpc_memory_bytes;
      bytes < options.max_message_bytes) {
    return Refuse("grpc_memory_bytes", absl::StrCat(bytes),
                  absl::StrCat(" has no room for one message of --max_message_bytes=",
                               options.max_message_bytes));
  }
  if (const std::string problem = StoreProblem(options.store); !problem.empty()) {
    return Refuse("store", options.store, problem);
  }
  return absl::OkStatus();
}

absl::Status CheckFiles(const ServerOptions& options) {
  absl::Status status = Authenticator::Make(options.security).status();
  if (status.ok() && options.security.has_tls()) status = TlsFiles::Check(options.security);
  if (status.ok()) status = CheckProxyCertificate(options.security);
  return status;
}

}  // namespace sis
