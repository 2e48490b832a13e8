#include "server/store/redis/redis_connection.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <future>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "server/threads/steady_now.h"

namespace sis {
namespace {

constexpr int kMaxAddressesPerHost = 8;
constexpr size_t kMaxGreetingBytes = 4096;

absl::Status Unavailable(absl::string_view why) { return absl::UnavailableError(why); }

absl::Status FromErrno(absl::string_view call) {
  return Unavailable(absl::StrCat(call, ": ", std::strerror(errno)));
}

// Returns false if `descriptor` is not ready for `events` by the deadline.
bool Ready(int descriptor, short events, absl::Time deadline) {
  for (;;) {
    const absl::Duration left = deadline - SteadyNow();
    if (left <= absl::ZeroDuration()) return false;
    pollfd polled = {descriptor, events, 0};
    const int64_t milliseconds = absl::ToInt64Milliseconds(std::min(left, absl::Minutes(1))) + 1;
    if (poll(&polled, 1, static_cast<int>(milliseconds)) > 0) return true;
  }
}

struct SocketAddress {
  sockaddr_storage storage;
  socklen_t size;
};
using SocketAddresses = std::vector<SocketAddress>;

absl::StatusOr<SocketAddresses> LookUp(const RedisNode& node, int flags) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(node.host.c_str(), absl::StrCat(node.port).c_str(), &hints, &found);
  if (error != 0) return Unavailable(absl::StrCat("look-up: ", gai_strerror(error)));
  SocketAddresses addresses;
  for (const addrinfo* each = found;
       each != nullptr && addresses.size() < size_t{kMaxAddressesPerHost}; each = each->ai_next) {
    std::memcpy(&addresses.emplace_back().storage, each->ai_addr, each->ai_addrlen);
    addresses.back().size = each->ai_addrlen;
  }
  freeaddrinfo(found);
  return addresses;
}

// getaddrinfo has no deadline: a thread of its own may wait longer for the answer.
absl::StatusOr<SocketAddresses> Resolve(const RedisNode& node, absl::Time deadline) {
  absl::StatusOr<SocketAddresses> numeric = LookUp(node, AI_NUMERICHOST);
  if (numeric.ok()) return numeric;
  constexpr int kMaxLookUps = 16;
  static std::atomic<int> look_ups = 0;
  if (look_ups.fetch_add(1) >= kMaxLookUps) {
    --look_ups;
    return Unavailable("look-up: no answer to the look-ups before");
  }
  std::promise<absl::StatusOr<SocketAddresses>> promise;
  std::future<absl::StatusOr<SocketAddresses>> result = promise.get_future();
  std::thread([node, promise = std::move(promise)]() mutable {
    promise.set_value(LookUp(node, 0));
    --look_ups;
  }).detach();
  if (result.wait_for(absl::ToChronoNanoseconds(deadline - SteadyNow())) !=
      std::future_status::ready) {
    return Unavailable("look-up: no answer in time");
  }
  return result.get();
}

absl::StatusOr<int> Connect(const SocketAddress& address, absl::Time deadline) {
  const int descriptor =
      socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return FromErrno("socket");
  absl::Cleanup give_up = [descriptor] { close(descriptor); };
  const int on = 1;
  setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(descriptor, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  if (connect(descriptor, reinterpret_cast<const sockaddr*>(&address.storage), address.size) != 0) {
    if (errno != EINPROGRESS) return FromErrno("connect");
    if (!Ready(descriptor, POLLOUT, deadline)) return Unavailable("connect: no answer in time");
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return Unavailable(absl::StrCat("connect: ", std::strerror(error)));
  }
  std::move(give_up).Cancel();
  return descriptor;
}

// Returns the reason of the last failure of OpenSSL in this thread.
absl::Status TlsError(absl::string_view what) {
  const unsigned long code = ERR_get_error();
  const char* const reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return Unavailable(absl::StrCat(what, ": ", reason == nullptr ? "failed" : reason));
}

}  // namespace

std::string FormatRedisCommand(const std::vector<absl::string_view>& arguments) {
  size_t size = 32;
  for (const absl::string_view argument : arguments) size += argument.size() + 32;
  std::string command;
  command.reserve(size);
  absl::StrAppend(&command, "*", arguments.size(), "\r\n");
  for (const absl::string_view argument : arguments) {
    absl::StrAppend(&command, "$", argument.size(), "\r\n", argument, "\r\n");
  }
  return command;
}

absl::StatusOr<std::unique_ptr<RedisConnection>> RedisConnection::Open(const RedisNode& node,
                                                                       const RedisAddress& address,
                                                                       absl::Time deadline) {
  const absl::StatusOr<SocketAddresses> found = Resolve(node, deadline);
  if (!found.ok()) return found.status();
  absl::StatusOr<int> descriptor = Unavailable("look-up: no address");
  for (size_t i = 0; i < found->size() && !descriptor.ok(); ++i) {
    // Leaves time for the addresses that follow.
    const absl::Duration left = deadline - SteadyNow();
    descriptor = Connect((*found)[i], SteadyNow() + left / (found->size() - i));
  }
  if (!descriptor.ok()) return descriptor.status();
  std::unique_ptr<RedisConnection> connection(new RedisConnection(*descriptor));
  if (address.tls) {
    if (absl::Status status = connection->StartTls(node, address, deadline); !status.ok()) {
      return status;
    }
  }
  if (absl::Status status = connection->Authenticate(address, deadline); !status.ok()) {
    return status;
  }
  return connection;
}

RedisConnection::~RedisConnection() {
  SSL_free(tls_);
  close(descriptor_);
}

absl::Status RedisConnection::StartTls(const RedisNode& node, const RedisAddress& address,
                                       absl::Time deadline) {
  ERR_clear_error();
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_client_method()),
                                                                  SSL_CTX_free);
  if (context == nullptr) return TlsError("TLS");
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  if ((address.ca.empty()
           ? SSL_CTX_set_default_verify_paths(context.get())
           : SSL_CTX_load_verify_locations(context.get(), address.ca.c_str(), nullptr)) != 1) {
    return TlsError(absl::StrCat("ca ", address.ca));
  }
  if (!address.cert.empty() &&
      (SSL_CTX_use_certificate_chain_file(context.get(), address.cert.c_str()) != 1 ||
       SSL_CTX_use_PrivateKey_file(context.get(), address.key.c_str(), SSL_FILETYPE_PEM) != 1)) {
    return TlsError(absl::StrCat("cert ", address.cert, " with key ", address.key));
  }
  tls_ = SSL_new(context.get());
  if (tls_ == nullptr || SSL_set_fd(tls_, descriptor_) != 1) return TlsError("TLS");
  X509_VERIFY_PARAM* const verify = SSL_get0_param(tls_);
  if (X509_VERIFY_PARAM_set1_ip_asc(verify, node.host.c_str()) != 1) {
    SSL_set_tlsext_host_name(tls_, node.host.c_str());
    if (SSL_set1_host(tls_, node.host.c_str()) != 1) return TlsError("TLS");
  }
  absl::Status status = Move(POLLIN, deadline, [&] { return SSL_connect(tls_); }).status();
  if (const long verified = SSL_get_verify_result(tls_); !status.ok() && verified != X509_V_OK) {
    return Unavailable(absl::StrCat("TLS: ", X509_verify_cert_error_string(verified)));
  }
  return status;
}

absl::Status RedisConnection::Authenticate(const RedisAddress& address, absl::Time deadline) {
  std::string password = address.password;
  if (!address.password_file.empty()) {
    std::ifstream file(address.password_file);
    if (!std::getline(file, password) || password.empty()) {
      return Unavailable(absl::StrCat("password_file ", address.password_file, ": no password"));
    }
  }
  std::vector<std::vector<absl::string_view>> commands;
  if (!password.empty()) {
    commands.push_back({"AUTH", password});
    if (!address.user.empty()) commands.back().insert(commands.back().begin() + 1, address.user);
  }
  const std::string database = absl::StrCat(address.database);
  if (address.database != 0) commands.push_back({"SELECT", database});
  for (const std::vector<absl::string_view>& command : commands) {
    if (absl::Status status = Send(FormatRedisCommand(command), deadline); !status.ok()) {
      return status;
    }
    const absl::StatusOr<RedisReply> reply = Receive(kMaxGreetingBytes, deadline);
    if (!reply.ok()) return reply.status();
    if (reply->is_error()) return Unavailable(absl::StrCat(command[0], ": ", reply->text));
  }
  return absl::OkStatus();
}

bool RedisConnection::IsQuiet() const {
  char byte;
  return recv(descriptor_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

template <typename Step>
absl::StatusOr<size_t> RedisConnection::Move(short events, absl::Time deadline, const Step& step) {
  for (;;) {
    // First, so that bytes that come without a pause have a deadline too.
    if (SteadyNow() >= deadline) return Unavailable("no reply in time");
    ERR_clear_error();
    const auto moved = step();
    if (moved > 0) return static_cast<size_t>(moved);
    short wanted = events;
    if (tls_ != nullptr) {
      const int error = SSL_get_error(tls_, static_cast<int>(moved));
      if (error == SSL_ERROR_ZERO_RETURN) return Unavailable("the node closed the connection");
      if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
        wanted = error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT;
      } else if (error == SSL_ERROR_SYSCALL && ERR_peek_error() == 0) {
        if (errno == 0) return Unavailable("the node closed the connection");
        // A reset may arrive before the alert that asks for a certificate.
        const bool has_certificate = SSL_get_certificate(tls_) != nullptr;
        return FromErrno(has_certificate ? "TLS"
                                         : "TLS, without a certificate that may be required");
      } else {
        return TlsError("TLS");
      }
    } else if (moved == 0) {
      return Unavailable("the node closed the connection");
    } else if (errno != EAGAIN && errno != EINTR) {
      return FromErrno(events == POLLIN ? "receive" : "send");
    }
    if (!Ready(descriptor_, wanted, deadline)) return Unavailable("no reply in time");
  }
}

absl::Status RedisConnection::Send(std::string_view bytes, absl::Time deadline) {
  while (!bytes.empty()) {
    const absl::StatusOr<size_t> sent = Move(POLLOUT, deadline, [&]() -> ssize_t {
      if (tls_ == nullptr) return send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      return SSL_write(tls_, bytes.data(),
                       static_cast<int>(std::min(bytes.size(), size_t{1} << 20)));
    });
    if (!sent.ok()) return sent.status();
    bytes.remove_prefix(*sent);
  }
  return absl::OkStatus();
}

absl::StatusOr<RedisReply> RedisConnection::Receive(size_t max_bytes, absl::Time deadline) {
  for (std::array<char, size_t{64} << 10> buffer;;) {
    absl::StatusOr<std::optional<RedisReply>> reply = replies_.Next(max_bytes);
    if (!reply.ok()) return reply.status();
    if (reply->has_value()) return **std::move(reply);
    const absl::StatusOr<size_t> received = Move(POLLIN, deadline, [&]() -> ssize_t {
      if (tls_ == nullptr) return recv(descriptor_, buffer.data(), buffer.size(), 0);
      return SSL_read(tls_, buffer.data(), static_cast<int>(buffer.size()));
    });
    if (!received.ok()) return received.status();
    replies_.Feed({buffer.data(), *received});
  }
}

}  // namespace sis
