#include "server/main/own_port.h"

#include <netdb.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace sis {
namespace {

struct Address {
  sockaddr_storage socket = {};
  socklen_t size = 0;
};

class Socket {
 public:
  explicit Socket(int family) : descriptor_(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
  ~Socket() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
};

// Returns no address if `name` is longer than the path of a socket may be.
std::vector<Address> UnixAddress(absl::string_view name) {
  Address address;
  auto& unix_address = reinterpret_cast<sockaddr_un&>(address.socket);
  if (name.size() > sizeof(unix_address.sun_path)) return {};
  unix_address.sun_family = AF_UNIX;
  std::memcpy(unix_address.sun_path, name.data(), name.size());
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  return {address};
}

std::vector<Address> HostAddresses(absl::string_view name) {
  const size_t colon = name.rfind(':');
  if (colon == name.npos) return {};
  absl::string_view host = name.substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(std::string(host).c_str(), std::string(name.substr(colon + 1)).c_str(), &hints,
                  &found) != 0) {
    return {};
  }
  std::vector<Address> addresses;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    Address& address = addresses.emplace_back();
    std::memcpy(&address.socket, each->ai_addr, each->ai_addrlen);
    address.size = each->ai_addrlen;
  }
  freeaddrinfo(found);
  return addresses;
}

std::vector<Address> Resolve(absl::string_view name) {
  if (absl::ConsumePrefix(&name, "unix-abstract:")) {
    return UnixAddress(absl::StrCat(absl::string_view("\0", 1), name));
  }
  if (!absl::ConsumePrefix(&name, "unix:")) return HostAddresses(name);
  absl::ConsumePrefix(&name, "//");
  return UnixAddress(name);
}

bool Connect(const Socket& socket, const Address& address) {
  return connect(socket.descriptor(), reinterpret_cast<const sockaddr*>(&address.socket),
                 address.size) == 0;
}

bool ReceivesByte(int descriptor) {
  char byte = 0;
  return recv(descriptor, &byte, 1, 0) == 1;
}

// Returns the first message of a client over TLS; empty if there is no memory.
std::string ClientHello() {
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_client_method()),
                                                                  SSL_CTX_free);
  if (context == nullptr) return "";
  const std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(context.get()), SSL_free);
  if (ssl == nullptr) return "";
  BIO* const sent = BIO_new(BIO_s_mem());
  SSL_set_bio(ssl.get(), BIO_new(BIO_s_mem()), sent);  // ssl then owns both
  SSL_connect(ssl.get());                              // returns when it needs the response
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(sent, &bytes);
  return std::string(bytes, size);
}

// Sends only the ClientHello. A full handshake would fail if clients need a certificate, and gRPC
// would log that as an error.
bool ReceivesHandshake(int descriptor) {
  const std::string hello = ClientHello();
  return send(descriptor, hello.data(), hello.size(), MSG_NOSIGNAL) ==
             static_cast<ssize_t>(hello.size()) &&
         ReceivesByte(descriptor);
}

}  // namespace

bool AcceptsConnections(const OwnPort& port, absl::Duration timeout) {
  const timeval patience = absl::ToTimeval(timeout);
  for (const Address& address : Resolve(port.address)) {
    const Socket socket(address.socket.ss_family);
    setsockopt(socket.descriptor(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    setsockopt(socket.descriptor(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    if (!Connect(socket, address)) continue;
    const int descriptor = socket.descriptor();
    if (port.tls ? ReceivesHandshake(descriptor) : ReceivesByte(descriptor)) return true;
  }
  return false;
}

bool IsTaken(const std::string& name) {
  for (const Address& address : Resolve(name)) {
    const Socket socket(address.socket.ss_family);
    const timeval at_once = {.tv_sec = 0, .tv_usec = 1};
    setsockopt(socket.descriptor(), SOL_SOCKET, SO_SNDTIMEO, &at_once, sizeof(at_once));
    // EAGAIN: the queue of a process that listens is full.
    if (Connect(socket, address) || errno == EAGAIN) return true;
  }
  return false;
}

}  // namespace sis
