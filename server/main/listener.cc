#include "server/main/listener.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "server/main/descriptor_limit.h"
#include "server/threads/steady_now.h"

namespace sis {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using Error = boost::system::error_code;
using Acceptor = grpc::experimental::ExternalConnectionAcceptor;

// How long refusing counts as going on.
constexpr absl::Duration kLately = absl::Seconds(5);
// How often it is looked at what strangers bring.
constexpr absl::Duration kLookInterval = absl::Milliseconds(20);
// The time between looks is at least so many times that of a look.
constexpr int kLookShare = 9;
// Before a system that lacks memory is asked again.
constexpr std::chrono::milliseconds kPause(50);
// As gRPC's own sockets: what a client doesn't acknowledge for so long ends its connection.
constexpr int kUserTimeoutMilliseconds = 20'000;

int OpenSpare() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

}  // namespace

Listener::Listener(Strangers& strangers, const Strangers::Limits& limits)
    : strangers_(strangers),
      limits_(limits),
      first_reserved_(FirstReservedDescriptor()),
      spare_(OpenSpare()) {}

Listener::~Listener() {
  Stop();
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
  using UnixEndpoint = asio::local::stream_protocol::endpoint;
  try {
    absl::string_view name = address;
    if (absl::ConsumePrefix(&name, "unix-abstract:")) {
      Bind(UnixEndpoint(absl::StrCat(absl::string_view("\0", 1), name)), acceptor);
      return address;
    }
    if (!absl::StartsWith(address, "unix:")) return ListenAtHost(address, acceptor);
    absl::StatusOr<SocketFile> file = SocketFile::Prepare(address);
    if (!file.ok()) return file.status();
    Bind(UnixEndpoint(file->temporary_path()), acceptor);
    if (absl::Status status = file->Publish(); !status.ok()) return status;
    files_.push_back(*std::move(file));
    return address;
  } catch (const boost::system::system_error& error) {
    return absl::UnavailableError(error.what());
  }
}

void Listener::Bind(const Protocol::endpoint& endpoint, Acceptor* acceptor, bool only_v6) {
  asio::basic_socket_acceptor<Protocol> socket(io_, endpoint.protocol());
  fcntl(socket.native_handle(), F_SETFD, FD_CLOEXEC);
  if (endpoint.protocol().family() != AF_UNIX) {
    // What is accepted inherits them.
    socket.set_option(asio::socket_base::reuse_address(true));
    socket.set_option(tcp::no_delay(true));
    setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_USER_TIMEOUT, &kUserTimeoutMilliseconds,
               sizeof(kUserTimeoutMilliseconds));
  }
  if (endpoint.protocol().family() == AF_INET6) socket.set_option(asio::ip::v6_only(only_v6));
  socket.bind(endpoint);
  socket.listen(SOMAXCONN);
  socket.native_non_blocking(true);
  sockets_.push_back({std::move(socket), acceptor});
}

absl::StatusOr<std::string> Listener::ListenAtHost(const std::string& address, Acceptor* acceptor) {
  const size_t colon = address.rfind(':');
  absl::string_view host = absl::string_view(address).substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  // As with gRPC the wildcard of IPv4 stands for that of IPv6 as well, where there is IPv6.
  std::vector<std::string> hosts = {std::string(host)};
  if (host == "0.0.0.0") hosts.insert(hosts.begin(), "::");
  std::string problem;
  for (const std::string& name : hosts) {
    bool listens = false;
    tcp::endpoint local;  // of the last, with the port that was picked
    Error unknown;
    const auto all = tcp::resolver(io_).resolve(
        name, address.substr(colon + 1), tcp::resolver::passive | tcp::resolver::numeric_service,
        unknown);
    if (unknown) problem = unknown.message();
    for (const auto& found : all) {
      tcp::endpoint endpoint = found.endpoint();
      if (listens) endpoint.port(local.port());
      try {
        Bind(endpoint, acceptor, !endpoint.address().is_unspecified());
      } catch (const boost::system::system_error& error) {
        problem = error.what();
        continue;
      }
      const Protocol::endpoint bound = sockets_.back().socket.local_endpoint();
      local = endpoint;
      std::memcpy(local.data(), bound.data(), bound.size());
      listens = true;
    }
    if (listens) return absl::StrCat(address.substr(0, colon), ":", local.port());
  }
  return absl::UnavailableError(problem);
}

void Listener::Start() {
  for (Socket& socket : sockets_) AwaitConnections(socket);
  thread_ = std::thread([this] { io_.run(); });
}

void Listener::Stop() {
  io_.stop();
  if (thread_.joinable()) thread_.join();
  sockets_.clear();
  files_.clear();
}

bool Listener::RefusedLately() const {
  return last_refused_ > absl::ToUnixNanos(SteadyNow() - kLately);
}

void Listener::CountRefused() {
  ++refused_;
  last_refused_ = absl::ToUnixNanos(SteadyNow());
}

void Listener::AwaitConnections(Socket& socket) {
  socket.socket.async_wait(asio::socket_base::wait_read, [this, &socket](const Error&) {
    const bool has_room = AcceptFrom(socket);
    if (!looking_ && !strangers_.empty()) LookAtStrangers(kLookInterval);
    if (has_room) return AwaitConnections(socket);
    socket.pause.expires_after(kPause);
    socket.pause.async_wait([this, &socket](const Error&) { AwaitConnections(socket); });
  });
}

void Listener::LookAtStrangers(absl::Duration later) {
  looking_ = true;
  next_look_.expires_after(absl::ToChronoNanoseconds(later));
  next_look_.async_wait([this](const Error&) {
    const absl::Time begin = SteadyNow();
    strangers_.Check(limits_);
    looking_ = !strangers_.empty();
    if (looking_) LookAtStrangers(std::max(kLookInterval, kLookShare * (SteadyNow() - begin)));
  });
}

bool Listener::AcceptFrom(Socket& socket) {
  const int listening = socket.socket.native_handle();
  while (true) {
    const int connection = accept4(listening, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (connection >= 0 && connection < first_reserved_) {
      strangers_.Add(connection);
      Acceptor::NewConnectionParameters parameters;
      parameters.listener_fd = listening;
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
        const int refused = accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
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
