// The sockets at which clients connect.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <limits>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/main/socket_file.h"
#include "server/security/strangers.h"

namespace sis {

// Accepts connections and hands them to gRPC. The installed gRPC could do that itself, but it never
// accepts again once it has found no file descriptor for a connection. Here those that are too many
// are closed as soon as they come, and there is always one descriptor to do that with.
class Listener {
 public:
  using Credentials =
      std::function<std::shared_ptr<grpc::ServerCredentials>(const std::string& address)>;

  // Listens at the addresses, host:port, unix:PATH or unix-abstract:NAME, whose connections will be
  // those of the server that `builder` makes, and `strangers` to begin with, which must outlive
  // this. All addresses of a host name are taken that can be.
  // Unavailable says which can't be listened on, and why.
  static absl::StatusOr<std::unique_ptr<Listener>> Listen(const std::vector<std::string>& addresses,
                                                          const Credentials& credentials,
                                                          grpc::ServerBuilder& builder,
                                                          Strangers& strangers,
                                                          const Strangers::Limits& limits);

  // As Stop.
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // With the ports that were picked, commas between.
  const std::string& addresses() const { return addresses_; }

  // Accepts from now on; the server must have been started.
  void Start();
  // From now on connections are refused by the system. Idempotent, not thread-safe.
  void Stop();

  // Connections that were closed because there were too many, and whether some were just now.
  // Thread-safe.
  int64_t refused() const { return refused_; }
  bool RefusedLately() const;

 private:
  using Protocol = boost::asio::generic::stream_protocol;
  struct Socket {
    boost::asio::basic_socket_acceptor<Protocol> socket;
    grpc::experimental::ExternalConnectionAcceptor* acceptor;
    boost::asio::steady_timer pause{socket.get_executor()};
  };

  Listener(Strangers& strangers, const Strangers::Limits& limits);
  absl::StatusOr<std::string> ListenAt(const std::string& address,
                                       grpc::experimental::ExternalConnectionAcceptor* acceptor);
  absl::StatusOr<std::string> ListenAtHost(
      const std::string& address, grpc::experimental::ExternalConnectionAcceptor* acceptor);
  // Throws what the system says.
  void Bind(const Protocol::endpoint& endpoint,
            grpc::experimental::ExternalConnectionAcceptor* acceptor, bool only_v6 = false);
  void AwaitConnections(Socket& socket);
  // While there are any.
  void LookAtStrangers(absl::Duration later);
  // All that wait. False if the system has no room for them at present.
  bool AcceptFrom(Socket& socket);
  void CountRefused();

  Strangers& strangers_;
  const Strangers::Limits limits_;
  std::string addresses_;
  std::vector<SocketFile> files_;
  std::vector<std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor>> acceptors_;
  const int first_reserved_;
  int spare_;  // given up for as long as it takes to close a connection
  std::atomic<int64_t> refused_ = 0;
  std::atomic<int64_t> last_refused_ = std::numeric_limits<int64_t>::min();  // nanoseconds
  // All from here on is the thread's.
  boost::asio::io_context io_{1};
  std::list<Socket> sockets_;
  boost::asio::steady_timer next_look_{io_};
  bool looking_ = false;
  std::thread thread_;
};

}  // namespace sis
