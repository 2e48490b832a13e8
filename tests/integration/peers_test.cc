// Clients that ignore the server's limits (docs/security.md), which gRPC's libraries heed. A client
// whose machine vanishes sends no more bytes, and no end of the connection either.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "server/main/server.h"
#include "server/main/server_options.h"

namespace sis {
namespace {

// Returns a socket that is connected to an address like 127.0.0.1:9464.
int Connected(const std::string& address) {
  const size_t colon = address.rfind(':');
  sockaddr_in server = {};
  server.sin_family = AF_INET;
  server.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(colon + 1))));
  inet_pton(AF_INET, address.substr(0, colon).c_str(), &server.sin_addr);
  const int connection = socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(connect(connection, reinterpret_cast<const sockaddr*>(&server), sizeof server), 0);
  return connection;
}

// An HTTP/2 client without a library, which can misbehave.
class Http2Peer {
 public:
  // As RFC 9113 has them.
  enum FrameType : uint8_t { kHeaders = 1, kReset = 3, kSettings = 4, kPing = 6, kGoAway = 7 };
  struct Frame {
    uint8_t type;
    uint8_t flags;
    uint32_t stream;
    std::string payload;
  };

  explicit Http2Peer(const std::string& address) : socket_(Connected(address)) {
    Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    Send({kSettings, 0, 0, ""});
    // They hold from when they have been acknowledged.
    EXPECT_EQ(Next().type, kSettings);
    Send({kSettings, kAck, 0, ""});
  }
  ~Http2Peer() { close(socket_); }
  Http2Peer(const Http2Peer&) = delete;
  Http2Peer& operator=(const Http2Peer&) = delete;

  // Opens a stream for this method, with this much metadata, and sends nothing on it. Streams have
  // odd numbers that rise.
  void Open(const std::string& method, uint32_t stream = 1, size_t metadata_bytes = 0) {
    std::string block;
    for (const auto& [name, value] : std::vector<std::pair<std::string, std::string>>{
             {":method", "POST"},
             {":scheme", "http"},
             {":path", "/sis.v1.RatioService/" + method},
             {":authority", "sis"},
             {"te", "trailers"},
             {"content-type", "application/grpc"},
             {"metadata", std::string(metadata_bytes, 'x')}}) {
      // Literal, not indexed, with a name of its own.
      block += '\0';
      for (const std::string& text : {name, value}) block += Length(text.size()) + text;
    }
    Send({kHeaders, kEndHeaders, stream, block});
  }

  // Whether there was an answer before the other side said farewell, or closed the connection.
  bool Ping() {
    Send({kPing, 0, 0, std::string(8, 'p')});
    for (Frame frame = Next(); !closed_ && frame.type != kGoAway; frame = Next()) {
      if (frame.type == kPing && frame.flags == kAck) return true;
    }
    return false;
  }
  // Answers `count` pings.
  void AnswerPings(int count) {
    while (count > 0) {
      Frame frame = Next();
      ASSERT_FALSE(closed_) << count << " pings were still to come";
      if (frame.type != kPing || frame.flags == kAck) continue;
      frame.flags = kAck;
      Send(frame);
      --count;
    }
  }
  // Says nothing until the other side has closed the connection.
  void SayNothingUntilClosed() {
    while (!closed_) Next();
  }
  // Waits for the next frame from the other side, which may close the connection instead.
  Frame Next() {
    const std::string head = Receive(9);
    if (closed_) return {};
    const auto byte = [&](size_t i) { return static_cast<uint8_t>(head[i]); };
    const size_t size = size_t{byte(0)} << 16 | size_t{byte(1)} << 8 | byte(2);
    const uint32_t stream = byte(5) << 24 | byte(6) << 16 | byte(7) << 8 | byte(8);
    return {byte(3), byte(4), stream, Receive(size)};
  }
  bool closed() const { return closed_; }

 private:
  static constexpr uint8_t kAck = 1;
  static constexpr uint8_t kEndHeaders = 4;

  // An integer of RFC 7541 with a prefix of 7 bits.
  static std::string Length(size_t length) {
    std::string bytes(1, static_cast<char>(std::min<size_t>(length, 127)));
    if (length < 127) return bytes;
    for (length -= 127; length >= 128; length >>= 7) {
      bytes += static_cast<char>(128 | (length & 127));
    }
    return bytes + static_cast<char>(length);
  }
  // Bytes that are sent to a closed connection are lost.
  void Send(const std::string& bytes) { send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  void Send(const Frame& frame) {
    std::string bytes;
    for (const int shift : {16, 8, 0}) bytes += static_cast<char>(frame.payload.size() >> shift);
    bytes += static_cast<char>(frame.type);
    bytes += static_cast<char>(frame.flags);
    for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(frame.stream >> shift);
    Send(bytes + frame.payload);
  }
  std::string Receive(size_t size) {
    std::string bytes(size, '\0');
    closed_ =
        size > 0 && recv(socket_, bytes.data(), size, MSG_WAITALL) < static_cast<ssize_t>(size);
    return bytes;
  }

  const int socket_;
  bool closed_ = false;
};

// Returns the value of a series of GET /metrics, written with its labels as on the page; 0 if it is
// absent.
double MetricValue(const std::string& address, const std::string& series) {
  const int connection = Connected(address);
  const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
  EXPECT_EQ(send(connection, request.data(), request.size(), 0), request.size());
  std::string page;
  char buffer[1 << 16];
  for (ssize_t got; (got = recv(connection, buffer, sizeof buffer, 0)) > 0;) {
    page.append(buffer, got);
  }
  close(connection);
  const size_t line = page.find("\n" + series + " ");
  return line == std::string::npos ? 0 : std::stod(page.substr(line + series.size() + 2));
}

ServerOptions Options() {
  ServerOptions options;
  options.listen = "127.0.0.1:0";
  options.admin = "127.0.0.1:0";
  options.cache_bytes = 64 << 20;
  return options;
}

std::unique_ptr<Server> Serve(const ServerOptions& options = Options()) {
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(options);
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

TEST(RudePeerTest, IsCutOffAfterThreePingsTooMany) {
  const auto server = Serve();
  Http2Peer peer(server->grpc_address());
  int answered = 0;
  while (answered < 100 && peer.Ping()) ++answered;
  // The first one is in time, and perhaps the second.
  EXPECT_GE(answered, 3);
  EXPECT_LE(answered, 5);
  peer.SayNothingUntilClosed();
}

TEST(RudePeerTest, MayPingOnceInAnInterval) {
  ServerOptions options = Options();
  options.connections.ping_interval = absl::Milliseconds(50);
  const auto server = Serve(options);
  Http2Peer peer(server->grpc_address());
  for (int ping = 0; ping < 10; ++ping) {
    ASSERT_TRUE(peer.Ping()) << ping;
    // From its answer on, so that the next one can't be early.
    absl::SleepFor(options.connections.ping_interval + absl::Milliseconds(5));
  }
}

TEST(RudePeerTest, ACallWithTooMuchMetadataEnds) {
  const auto server = Serve();
  Http2Peer peer(server->grpc_address());
  peer.Open("Append", /*stream=*/1, /*metadata_bytes=*/16 << 10);
  Http2Peer::Frame frame;
  do {
    frame = peer.Next();
  } while (!peer.closed() && frame.stream == 0);
  EXPECT_EQ(frame.stream, 1);
  EXPECT_TRUE(frame.type == Http2Peer::kHeaders || frame.type == Http2Peer::kReset);
}

TEST(RudePeerTest, OneCallTooManyEndsTheConnection) {
  ServerOptions options = Options();
  options.connections.max_streams_per_connection = 2;
  const auto server = Serve(options);
  Http2Peer peer(server->grpc_address());
  peer.Open("Append", 1);
  peer.Open("Append", 3);
  EXPECT_TRUE(peer.Ping());
  peer.Open("Append", 5);
  peer.SayNothingUntilClosed();
}

TEST(SilentPeerTest, IsDisconnectedWithItsStreamsIfItAnswersNoPing) {
  ServerOptions options = Options();
  options.connections.silence = absl::Milliseconds(100);
  options.connections.answer_within = absl::Seconds(5);  // the machine may be busy
  const auto server = Serve(options);
  const auto count = [&](const std::string& started_or_handled) {
    return MetricValue(server->admin_address(),
                       "grpc_server_" + started_or_handled +
                           "grpc_method=\"Append\",grpc_service=\"sis.v1.RatioService\","
                           "grpc_type=\"bidi_stream\"}");
  };
  const std::string started = "started_total{";
  // No more requests come, which is how a stream ends.
  const std::string handled = "handled_total{grpc_code=\"OK\",";
  Http2Peer peer(server->grpc_address());
  peer.Open("Append");
  // A peer may be silent while it answers pings.
  peer.AnswerPings(10);
  EXPECT_EQ(count(started), 1);
  EXPECT_EQ(count(handled), 0);
  peer.SayNothingUntilClosed();
  while (count(handled) == 0) absl::SleepFor(absl::Milliseconds(20));
}

TEST(SilentPeerTest, IsDisconnectedWithoutStreamsToo) {
  ServerOptions options = Options();
  options.connections.silence = absl::Milliseconds(100);
  options.connections.answer_within = absl::Seconds(1);
  const auto server = Serve(options);
  Http2Peer peer(server->grpc_address());
  peer.SayNothingUntilClosed();
}

}  // namespace
}  // namespace sis
