// What of which connection is counted. tests/integration/strangers_test.py is about gRPC's part.
#include "server/security/strangers.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <string>
#include <vector>

namespace sis {
namespace {

// Descriptors that are closed in the end.
class Sockets {
 public:
  ~Sockets() {
    for (const int descriptor : all_) close(descriptor);
  }
  int Own(int descriptor) {
    EXPECT_GE(descriptor, 0);
    all_.push_back(descriptor);
    return descriptor;
  }

 private:
  std::vector<int> all_;
};

sockaddr_in Loopback(const char* address, uint16_t port) {
  sockaddr_in v4 = {};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(port);
  inet_pton(AF_INET, address, &v4.sin_addr);
  return v4;
}

uint16_t PortOf(int descriptor) {
  sockaddr_in address = {};
  socklen_t size = sizeof(address);
  getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

struct Connection {
  int client;
  int server;
};

// To that address of this machine, from a port of 127.0.0.1 or any.
Connection Connect(Sockets& sockets, const char* address, uint16_t from) {
  const int on = 1;
  const int listener = sockets.Own(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in at = Loopback(address, 0);
  EXPECT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&at), sizeof(at)), 0);
  EXPECT_EQ(listen(listener, 1), 0);
  at.sin_port = htons(PortOf(listener));
  const int client = sockets.Own(socket(AF_INET, SOCK_STREAM, 0));
  setsockopt(client, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  setsockopt(client, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on));
  const sockaddr_in own = Loopback("127.0.0.1", from);
  EXPECT_EQ(bind(client, reinterpret_cast<const sockaddr*>(&own), sizeof(own)), 0);
  EXPECT_EQ(connect(client, reinterpret_cast<sockaddr*>(&at), sizeof(at)), 0);
  return {client, sockets.Own(accept(listener, nullptr, nullptr))};
}

constexpr Strangers::Limits kLimits = {.each = 1000, .together = 1500};

void Send(const Connection& connection, size_t bytes) {
  const std::string text(bytes, 'x');
  ASSERT_EQ(send(connection.client, text.data(), bytes, 0), bytes);
  // TCP_INFO counts what has come.
  std::string got(bytes, '\0');
  ASSERT_EQ(recv(connection.server, got.data(), bytes, MSG_WAITALL), bytes);
}

TEST(StrangersTest, EachAndAllTogetherAreCounted) {
  Sockets sockets;
  Strangers strangers;
  std::array<Connection, 3> connections;
  for (Connection& connection : connections) {
    connection = Connect(sockets, "127.0.0.1", 0);
    strangers.Add(connection.server);
  }
  Send(connections[0], 1001);
  strangers.Check(kLimits);
  EXPECT_EQ(strangers.cut(), 1);
  Send(connections[1], 900);
  Send(connections[2], 600);
  strangers.Check(kLimits);
  EXPECT_EQ(strangers.cut(), 1);
  Send(connections[2], 1);
  strangers.Check(kLimits);
  EXPECT_EQ(strangers.cut(), 2) << "together too much: the one that brought most";
  strangers.Know(Strangers::PeerOf(connections[2].server));
  Send(connections[2], 5000);
  strangers.Check(kLimits);
  EXPECT_EQ(strangers.cut(), 2) << "known";
  EXPECT_TRUE(strangers.empty());
}

TEST(StrangersTest, OnePortOfAClientMayHaveSeveralConnections) {
  Sockets sockets;
  Strangers strangers;
  const Connection first = Connect(sockets, "127.0.0.1", 0);
  const Connection second = Connect(sockets, "127.0.0.2", PortOf(first.client));
  ASSERT_EQ(Strangers::PeerOf(first.server), Strangers::PeerOf(second.server));
  strangers.Add(first.server);
  strangers.Add(second.server);
  Send(first, 1001);
  strangers.Check(kLimits);
  EXPECT_EQ(strangers.cut(), 1);
  Send(second, 1001);
  strangers.Check(kLimits);
  EXPECT_EQ(strangers.cut(), 2);
}

TEST(StrangersTest, ADescriptorMayBeAnothers) {
  Sockets sockets;
  Strangers strangers;
  const Connection gone = Connect(sockets, "127.0.0.1", 0);
  const Connection other = Connect(sockets, "127.0.0.1", 0);
  strangers.Add(gone.server);
  ASSERT_EQ(dup2(other.server, gone.server), gone.server);
  Send(other, 1001);
  strangers.Check(kLimits);
  EXPECT_EQ(strangers.cut(), 0);
  EXPECT_TRUE(strangers.empty());
}

}  // namespace
}  // namespace sis
