#include "server/security/strangers.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/tcp.h>  // has more of tcp_info than <netinet/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace sis {
namespace {

std::optional<uint64_t> CookieOf(int descriptor) {
  uint64_t cookie = 0;
  socklen_t size = sizeof(cookie);
  if (getsockopt(descriptor, SOL_SOCKET, SO_COOKIE, &cookie, &size) != 0) return std::nullopt;
  return cookie;
}

// Nothing of a connection that is none, or has ended.
std::optional<int64_t> ReceivedBytes(int descriptor) {
  tcp_info info = {};
  socklen_t size = sizeof(info);
  if (getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return std::nullopt;
  constexpr uint8_t kEstablished = 1;
  if (info.tcpi_state != kEstablished) return std::nullopt;
  return static_cast<int64_t>(info.tcpi_bytes_received);
}

// Of the socket with this cookie, if it is still the descriptor's. Whoever reads or writes it next
// meets an error: gRPC, which then closes it and frees what came. A shutdown would do less: what
// has come is still to be read, and gRPC may not look again.
void Abort(int descriptor, uint64_t cookie) {
  // Of our own, as gRPC may close the other at any time, and it may be somebody else's then.
  const int own = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (own < 0) return;
  if (CookieOf(own) == cookie) {
    sockaddr nobody = {};
    nobody.sa_family = AF_UNSPEC;
    connect(own, &nobody, sizeof(nobody));
  }
  close(own);
}

}  // namespace

std::string Strangers::PeerOf(int descriptor) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (getpeername(descriptor, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "";
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
    return absl::StrCat("ipv4:", text, ":", ntohs(v4.sin_port));
  }
  if (address.ss_family != AF_INET6) return "";
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    inet_ntop(AF_INET, &v6.sin6_addr.s6_addr[12], text, sizeof(text));
    return absl::StrCat("ipv4:", text, ":", ntohs(v6.sin6_port));
  }
  inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
  // Of a link: which one is said by its number.
  const std::string scope = v6.sin6_scope_id == 0 ? "" : absl::StrCat("%25", v6.sin6_scope_id);
  return absl::StrCat("ipv6:%5B", text, scope, "%5D:", ntohs(v6.sin6_port));
}

void Strangers::Add(int descriptor) {
  std::string peer = PeerOf(descriptor);
  const std::optional<uint64_t> cookie = CookieOf(descriptor);
  if (peer.empty() || !cookie.has_value()) return;
  WriterLock lock(mutex_);
  strangers_.emplace(std::move(peer), Stranger{descriptor, *cookie});
}

void Strangers::Know(absl::string_view peer) {
  {
    ReaderLock lock(mutex_);
    if (!strangers_.contains(peer)) return;
  }
  WriterLock lock(mutex_);
  const auto [first, last] = strangers_.equal_range(peer);
  strangers_.erase(first, last);
}

void Strangers::Check(const Limits& limits) {
  WriterLock lock(mutex_);
  struct Bringer {
    int64_t bytes;
    Stranger stranger;
  };
  std::vector<Bringer> bringers;
  int64_t together = 0;
  for (auto stranger = strangers_.begin(); stranger != strangers_.end();) {
    const auto& [descriptor, cookie] = stranger->second;
    const std::optional<int64_t> bytes =
        CookieOf(descriptor) == cookie ? ReceivedBytes(descriptor) : std::nullopt;
    if (!bytes.has_value()) {
      stranger = strangers_.erase(stranger);
      continue;
    }
    bringers.push_back({*bytes, stranger->second});
    together += *bytes;
    ++stranger;
  }
  std::ranges::sort(bringers, std::greater(), &Bringer::bytes);
  for (const Bringer& bringer : bringers) {
    if (bringer.bytes <= limits.each && together <= limits.together) break;
    Abort(bringer.stranger.descriptor, bringer.stranger.cookie);
    together -= bringer.bytes;
    ++cut_;
  }
}

}  // namespace sis
