#include "server/main/listener.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "server/main/descriptor_limit.h"
#include "server/threads/steady_now.h"

namespace sis {
namespace {

using Acceptor = grpc::experimental::ExternalConnectionAcceptor;

// How long refusing counts as going on.
constexpr absl::Duration kLately = absl::Seconds(5);
// How often it is looked at what strangers bring.
constexpr int kLookMilliseconds = 20;
// The time between looks is at least so many times that of a look.
constexpr int kLookShare = 9;
// Before a system that lacks memory is asked again.
constexpr int kPauseMilliseconds = 50;
// As gRPC's own sockets: what a client doesn't acknowledge for so long ends its connection.
constexpr int kUserTimeoutMilliseconds = 20'000;

absl::Status FromErrno(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

int OpenSpare() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

int PortOf(int descriptor) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

absl::StatusOr<int> BindAndListen(int family, const sockaddr* address, socklen_t size,
                                  bool dual_stack) {
  const int descriptor = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return FromErrno("socket");
  absl::Cleanup give_up = [&] { close(descriptor); };
  const int on = 1;
  if (family != AF_UNIX) {
    // What is accepted inherits them.
    setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, &kUserTimeoutMilliseconds,
               sizeof(kUserTimeoutMilliseconds));
  }
  if (family == AF_INET6) {
    const int only = dual_stack ? 0 : 1;
    setsockopt(descriptor, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof(only));
  }
  if (bind(descriptor, address, size) != 0) return FromErrno("bind");
  if (listen(descriptor, SOMAXCONN) != 0) return FromErrno("listen");
  std::move(give_up).Cancel();
  return descriptor;
}

absl::StatusOr<int> BindAndListen(const addrinfo& found, int port) {
  sockaddr_storage address = {};
  std::memcpy(&address, found.ai_addr, found.ai_addrlen);
  bool wildcard = false;
  if (found.ai_family == AF_INET6) {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(address);
    v6.sin6_port = htons(port);
    wildcard = IN6_IS_ADDR_UNSPECIFIED(&v6.sin6_addr);
  } else {
    reinterpret_cast<sockaddr_in&>(address).sin_port = htons(port);
  }
  return BindAndListen(found.ai_family, reinterpret_cast<const sockaddr*>(&address),
                       found.ai_addrlen, wildcard);
}

}  // namespace

Listener::Listener(Strangers& strangers, const Strangers::Limits& limits)
    : strangers_(strangers),
      limits_(limits),
      first_reserved_(FirstReservedDescriptor()),
      stop_(eventfd(0, EFD_CLOEXEC)),
      spare_(OpenSpare()) {}

Listener::~Listener() {
  Stop();
  close(stop_);
  close(spare_);
}

absl::StatusOr<std::unique_ptr<Listener>> Listener::Listen(
    const std::vector<std::string>& addresses, const Credentials& credentials,
    grpc::ServerBuilder& builder, Strangers& strangers, const Strangers::Limits& limits) {
  std::unique_ptr<Listener> listener(new Listener(strangers, limits));
  for (const std::string& address : addresses) {
    listener->acceptors_.push_back(builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
        credentials(address)));
    const absl::StatusOr<std::string> at =
        listener->ListenAt(address, listener->acceptors_.back().get());
    if (!at.ok()) {
      return absl::Status(at.status().code(),
                          absl::StrCat("cannot listen on ", address, ": ", at.status().message()));
    }
    absl::StrAppend(&listener->addresses_, listener->addresses_.empty() ? "" : ",", *at);
  }
  return listener;
}

absl::StatusOr<std::string> Listener::ListenAt(const std::string& address, Acceptor* acceptor) {
  absl::string_view name = address;
  if (absl::ConsumePrefix(&name, "unix-abstract:")) {
    absl::Status status = ListenAtPath(std::string(name), /*abstract=*/true, acceptor);
    if (!status.ok()) return status;
    return address;
  }
  if (!absl::StartsWith(address, "unix:")) return ListenAtHost(address, acceptor);
  absl::StatusOr<SocketFile> file = SocketFile::Prepare(address);
  if (!file.ok()) return file.status();
  absl::Status status = ListenAtPath(file->temporary_path(), /*abstract=*/false, acceptor);
  if (status.ok()) status = file->Publish();
  if (!status.ok()) return status;
  files_.push_back(*std::move(file));
  return address;
}

absl::Status Listener::ListenAtPath(const std::string& path, bool abstract, Acceptor* acceptor) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const size_t begin = abstract ? 1 : 0;
  if (path.size() + 1 > sizeof(address.sun_path)) {
    return absl::UnavailableError("the path is too long for a Unix socket");
  }
  std::memcpy(address.sun_path + begin, path.data(), path.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + 1);
  const absl::StatusOr<int> descriptor =
      BindAndListen(AF_UNIX, reinterpret_cast<const sockaddr*>(&address), size, false);
  if (!descriptor.ok()) return descriptor.status();
  sockets_.push_back({*descriptor, acceptor});
  return absl::OkStatus();
}

absl::StatusOr<std::string> Listener::ListenAtHost(const std::string& address, Acceptor* acceptor) {
  const size_t colon = address.rfind(':');
  const std::string port = address.substr(colon + 1);
  absl::string_view host = absl::string_view(address).substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  // As with gRPC the wildcard of IPv4 stands for that of IPv6 as well, where there is IPv6.
  std::vector<std::string> hosts = {std::string(host)};
  if (host == "0.0.0.0") hosts.insert(hosts.begin(), "::");
  absl::Status problem = absl::UnavailableError("no such address");
  for (const std::string& name : hosts) {
    addrinfo hints = {};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
    addrinfo* found = nullptr;
    if (const int error = getaddrinfo(name.c_str(), port.c_str(), &hints, &found); error != 0) {
      problem = absl::UnavailableError(gai_strerror(error));
      continue;
    }
    const absl::Cleanup free_found = [&] { freeaddrinfo(found); };
    int picked = std::stoi(port);
    bool listens = false;
    for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
      const absl::StatusOr<int> descriptor = BindAndListen(*each, picked);
      if (!descriptor.ok()) {
        problem = descriptor.status();
        continue;
      }
      listens = true;
      picked = PortOf(*descriptor);
      sockets_.push_back({*descriptor, acceptor});
    }
    if (listens) return absl::StrCat(address.substr(0, colon), ":", picked);
  }
  return problem;
}

void Listener::Start() {
  thread_ = std::thread([this] { AcceptUntilStopped(); });
}

void Listener::Stop() {
  eventfd_write(stop_, 1);
  if (thread_.joinable()) thread_.join();
  for (const Socket& socket : std::exchange(sockets_, {})) close(socket.descriptor);
  files_.clear();
}

bool Listener::RefusedLately() const {
  return last_refused_ > absl::ToUnixNanos(SteadyNow() - kLately);
}

void Listener::CountRefused() {
  ++refused_;
  last_refused_ = absl::ToUnixNanos(SteadyNow());
}

void Listener::AcceptUntilStopped() {
  std::vector<pollfd> polled = {{stop_, POLLIN, 0}};
  for (const Socket& socket : sockets_) polled.push_back({socket.descriptor, POLLIN, 0});
  while (true) {
    const int timeout = strangers_.empty() ? -1 : kLookMilliseconds;
    const int ready = poll(polled.data(), polled.size(), timeout);
    LookAtStrangers();
    if (ready < 0) continue;
    if (polled[0].revents != 0) return;
    bool has_room = true;
    for (size_t i = 0; i < sockets_.size(); ++i) {
      if (polled[i + 1].revents != 0) has_room = AcceptFrom(sockets_[i]) && has_room;
    }
    if (!has_room) poll(polled.data(), 1, kPauseMilliseconds);
  }
}

void Listener::LookAtStrangers() {
  const absl::Time begin = SteadyNow();
  if (begin < next_look_) return;
  strangers_.Check(limits_);
  const absl::Time end = SteadyNow();
  next_look_ = end + std::max(absl::Milliseconds(kLookMilliseconds), kLookShare * (end - begin));
}

bool Listener::AcceptFrom(const Socket& socket) {
  while (true) {
    const int connection =
        accept4(socket.descriptor, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (connection >= 0 && connection < first_reserved_) {
      strangers_.Add(connection);
      Acceptor::NewConnectionParameters parameters;
      parameters.listener_fd = socket.descriptor;
      parameters.fd = connection;
      socket.acceptor->HandleNewConnection(&parameters);
      continue;
    }
    if (connection >= 0) {
      CountRefused();  // first: whose connection ends may ask for the count
      close(connection);
      continue;
    }
    switch (errno) {
      case EAGAIN:
        return true;
      case EMFILE:
      case ENFILE: {
        close(spare_);
        const int refused = accept4(socket.descriptor, nullptr, nullptr, SOCK_CLOEXEC);
        CountRefused();
        if (refused >= 0) close(refused);
        spare_ = OpenSpare();
        if (refused < 0) return false;
        continue;
      }
      case ENOMEM:
      case ENOBUFS:
        return false;
      default:  // of that one connection
        continue;
    }
  }
}

}  // namespace sis
