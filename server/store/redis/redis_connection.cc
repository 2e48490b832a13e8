#include "server/store/redis/redis_connection.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <future>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/threads/steady_now.h"

namespace sis {
namespace {

constexpr size_t kMaxGreetingBytes = 4096;
constexpr int kMaxOpening = 256;

absl::Status Unavailable(absl::string_view why) { return absl::UnavailableError(why); }

// Returns the reason of the first failure of OpenSSL in this thread.
absl::Status TakeError(absl::string_view what) {
  const unsigned long code = ERR_get_error();
  const int system = ERR_SYSTEM_ERROR(code) ? ERR_GET_REASON(code) : code == 0 ? errno : 0;
  const char* const reason = system == 0 ? ERR_reason_error_string(code) : std::strerror(system);
  return Unavailable(
      absl::StrCat(what, reason == nullptr ? "the node closed the connection" : reason));
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

// Opens in a thread of its own, because the look-up of a name has no deadline.
absl::StatusOr<std::unique_ptr<RedisConnection>> RedisConnection::Open(const RedisNode& node,
                                                                       const RedisAddress& address,
                                                                       absl::Time deadline) {
  static std::atomic<int> opening = 0;
  if (opening.fetch_add(1) >= kMaxOpening) {
    --opening;
    return Unavailable("look-up: no answer to the look-ups before");
  }
  std::promise<absl::StatusOr<std::unique_ptr<RedisConnection>>> promise;
  auto opened = promise.get_future();
  std::thread([=, promise = std::move(promise)]() mutable {
    promise.set_value(OpenNow(node, address, deadline));
    --opening;
  }).detach();
  // A little longer, for an error that says more.
  const absl::Duration left = deadline - SteadyNow() + absl::Milliseconds(50);
  if (opened.wait_for(absl::ToChronoNanoseconds(left)) == std::future_status::ready) {
    return opened.get();
  }
  return Unavailable("look-up: no answer in time");
}

absl::StatusOr<std::unique_ptr<RedisConnection>> RedisConnection::OpenNow(
    const RedisNode& node, const RedisAddress& address, absl::Time deadline) {
  ERR_clear_error();
  auto connection = std::make_unique<RedisConnection>();
  connection->bio_.reset(BIO_new_connect(ToString(node).c_str()));
  BIO* const socket = connection->bio_.get();
  if (socket == nullptr) return TakeError("socket: ");
  BIO_set_conn_mode(socket, BIO_SOCK_NODELAY | BIO_SOCK_NONBLOCK);
  if (address.tls) {
    if (absl::Status status = connection->StartTls(node, address); !status.ok()) return status;
  }
  absl::Status status =
      connection->Move(deadline, [](BIO* bio) { return BIO_do_connect(bio); }).status();
  if (SSL* tls = nullptr; !status.ok() && BIO_get_ssl(connection->bio_.get(), &tls) == 1) {
    const long verified = SSL_get_verify_result(tls);
    if (verified != X509_V_OK) {
      return Unavailable(absl::StrCat("TLS: ", X509_verify_cert_error_string(verified)));
    }
  }
  if (status.ok()) status = connection->Authenticate(address, deadline);
  if (!status.ok()) return status;
  return connection;
}

absl::Status RedisConnection::StartTls(const RedisNode& node, const RedisAddress& address) {
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_client_method()),
                                                                  SSL_CTX_free);
  if (context == nullptr) return TakeError("TLS: ");
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  if ((address.ca.empty()
           ? SSL_CTX_set_default_verify_paths(context.get())
           : SSL_CTX_load_verify_locations(context.get(), address.ca.c_str(), nullptr)) != 1) {
    return TakeError(absl::StrCat("ca ", address.ca, ": "));
  }
  if (!address.cert.empty() &&
      (SSL_CTX_use_certificate_chain_file(context.get(), address.cert.c_str()) != 1 ||
       SSL_CTX_use_PrivateKey_file(context.get(), address.key.c_str(), SSL_FILETYPE_PEM) != 1)) {
    return TakeError(absl::StrCat("cert ", address.cert, " with key ", address.key, ": "));
  }
  BIO* const front = BIO_new_ssl(context.get(), /*client=*/1);
  if (front == nullptr) return TakeError("TLS: ");
  bio_.reset(BIO_push(front, bio_.release()));
  name_ = address.cert.empty() ? "TLS without a client's certificate: " : "TLS: ";
  SSL* tls = nullptr;
  BIO_get_ssl(front, &tls);
  if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(tls), node.host.c_str()) != 1) {
    SSL_set_tlsext_host_name(tls, node.host.c_str());
    if (SSL_set1_host(tls, node.host.c_str()) != 1) return TakeError("TLS: ");
  }
  return absl::OkStatus();
}

absl::Status RedisConnection::Authenticate(const RedisAddress& address, absl::Time deadline) {
  std::string password;
  if (!address.password_file.empty()) {
    std::ifstream file(address.password_file);
    if (!std::getline(file, password) || password.empty()) {
      return Unavailable(absl::StrCat("password_file ", address.password_file, ": no password"));
    }
  }
  const std::string user = address.user.empty() ? "default" : address.user;
  const std::string database = absl::StrCat(address.database);
  std::vector<std::vector<absl::string_view>> commands;
  if (!password.empty()) commands.push_back({"AUTH", user, password});
  if (address.database != 0) commands.push_back({"SELECT", database});
  for (const std::vector<absl::string_view>& command : commands) {
    if (absl::Status status = Send(FormatRedisCommand(command), deadline); !status.ok()) {
      return status;
    }
    const absl::StatusOr<RedisReply> reply = Receive(kMaxGreetingBytes, deadline);
    if (!reply.ok()) return reply.status();
    if (reply->is_error()) return RedisError(reply->text);
  }
  return absl::OkStatus();
}

template <typename Step>
absl::StatusOr<size_t> RedisConnection::Move(absl::Time deadline, const Step& step) {
  for (;;) {
    // First, so that bytes that come without a pause have a deadline too.
    const absl::Duration left = deadline - SteadyNow();
    if (left <= absl::ZeroDuration()) return Unavailable("no reply in time");
    ERR_clear_error();
    errno = 0;
    const auto moved = step(bio_.get());
    if (moved > 0) return static_cast<size_t>(moved);
    if (!BIO_should_retry(bio_.get())) return TakeError(name_);
    pollfd polled = {.fd = static_cast<int>(BIO_get_fd(bio_.get(), nullptr)),
                     .events = static_cast<short>(BIO_should_read(bio_.get()) ? POLLIN : POLLOUT),
                     .revents = 0};
    poll(&polled, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
  }
}

absl::Status RedisConnection::Send(std::string_view bytes, absl::Time deadline) {
  while (!bytes.empty()) {
    const auto size = static_cast<int>(std::min(bytes.size(), size_t{1} << 20));
    const absl::StatusOr<size_t> sent =
        Move(deadline, [&](BIO* bio) { return BIO_write(bio, bytes.data(), size); });
    if (!sent.ok()) return sent.status();
    bytes.remove_prefix(*sent);
  }
  return absl::OkStatus();
}

absl::StatusOr<RedisReply> RedisConnection::Receive(size_t max_bytes, absl::Time deadline) {
  return replies_.Next(max_bytes, [&](std::string& bytes) {
    std::array<char, size_t{64} << 10> buffer;
    const absl::StatusOr<size_t> received = Move(deadline, [&](BIO* bio) {
      return BIO_read(bio, buffer.data(), static_cast<int>(buffer.size()));
    });
    if (received.ok()) bytes.append(buffer.data(), *received);
    return received.status();
  });
}

}  // namespace sis
