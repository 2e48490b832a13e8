// A client whose machine vanishes: no bytes come any more, and no end of the connection either.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "server/testing/live_server.h"
#include "tests/integration/metrics_page.h"

namespace sis {
namespace {

// As RFC 9113 has them.
enum FrameType : uint8_t { kHeaders = 1, kSettings = 4, kPing = 6 };
constexpr uint8_t kAck = 1;
constexpr uint8_t kEndHeaders = 4;

struct Frame {
  uint8_t type;
  uint8_t flags;
  uint32_t stream;
  std::string payload;
};

// A client that speaks HTTP/2 by hand, so that it can stop in the middle.
class Peer {
 public:
  explicit Peer(const std::string& address) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    const size_t colon = address.rfind(':');
    sockaddr_in server = {};
    server.sin_family = AF_INET;
    server.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(colon + 1))));
    inet_pton(AF_INET, address.substr(0, colon).c_str(), &server.sin_addr);
    EXPECT_EQ(connect(socket_, reinterpret_cast<const sockaddr*>(&server), sizeof server), 0);
    Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    Send({kSettings, 0, 0, ""});
  }
  ~Peer() { close(socket_); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  // Opens a stream for this method, and sends nothing on it.
  void Open(const std::string& method) {
    std::string block;
    for (const auto& [name, value] : std::vector<std::pair<std::string, std::string>>{
             {":method", "POST"},
             {":scheme", "http"},
             {":path", "/sis.v1.RatioService/" + method},
             {":authority", "sis"},
             {"te", "trailers"},
             {"content-type", "application/grpc"}}) {
      // Literal, not indexed, with a name of its own.
      block += '\0';
      for (const std::string& text : {name, value}) block += static_cast<char>(text.size()) + text;
    }
    Send({kHeaders, kEndHeaders, 1, block});
  }

  // Answers `count` pings.
  void AnswerPings(int count) {
    while (count > 0) {
      Frame frame = Next();
      ASSERT_FALSE(closed_) << count << " pings were still to come";
      if ((frame.type != kPing && frame.type != kSettings) || frame.flags == kAck) continue;
      count -= frame.type == kPing;
      frame.flags = kAck;
      if (frame.type == kSettings) frame.payload.clear();
      Send(frame);
    }
  }

  // Says nothing until the other side has closed the connection.
  void SayNothingUntilClosed() {
    while (!closed_) Next();
  }

 private:
  void Send(const std::string& bytes) {
    EXPECT_EQ(send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL), bytes.size());
  }
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
  Frame Next() {
    const std::string head = Receive(9);
    if (closed_) return {};
    const auto byte = [&](size_t i) { return static_cast<uint8_t>(head[i]); };
    const size_t size = size_t{byte(0)} << 16 | size_t{byte(1)} << 8 | byte(2);
    return {byte(3), byte(4), byte(8), Receive(size)};
  }

  const int socket_;
  bool closed_ = false;
};

TEST(SilentPeerTest, GoesWithItsStreamsWhenItAnswersNoPing) {
  ServerOptions options = LiveServer::Options();
  options.admin = "127.0.0.1:0";
  options.connections.silence = absl::Milliseconds(100);
  options.connections.answer_within = absl::Seconds(5);  // the machine may be busy
  LiveServer live(options);
  const auto count = [&](const std::string& started_or_handled) {
    return MetricValue(MetricsPage(live.server().admin_address()),
                       "grpc_server_" + started_or_handled +
                           "grpc_method=\"Append\",grpc_service=\"sis.v1.RatioService\","
                           "grpc_type=\"bidi_stream\"}")
        .value_or(0);
  };
  const std::string started = "started_total{";
  // No more requests come, which is how a stream ends.
  const std::string handled = "handled_total{grpc_code=\"OK\",";
  Peer peer(live.server().grpc_address());
  peer.Open("Append");
  // As long as it answers it may be silent.
  peer.AnswerPings(10);
  EXPECT_EQ(count(started), 1);
  EXPECT_EQ(count(handled), 0);
  peer.SayNothingUntilClosed();
  while (count(handled) == 0) absl::SleepFor(absl::Milliseconds(20));
}

TEST(SilentPeerTest, GoesWithoutStreamsToo) {
  ServerOptions options = LiveServer::Options();
  options.connections.silence = absl::Milliseconds(100);
  options.connections.answer_within = absl::Seconds(1);
  LiveServer live(options);
  Peer peer(live.server().grpc_address());
  peer.SayNothingUntilClosed();
}

}  // namespace
}  // namespace sis
