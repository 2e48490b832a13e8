// An HTTP/2 client without a library, which can misbehave: stop in the middle, or ignore the
// server's limits.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace sis {

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

  explicit Http2Peer(const std::string& address) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    const size_t colon = address.rfind(':');
    sockaddr_in server = {};
    server.sin_family = AF_INET;
    server.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(colon + 1))));
    inet_pton(AF_INET, address.substr(0, colon).c_str(), &server.sin_addr);
    EXPECT_EQ(connect(socket_, reinterpret_cast<const sockaddr*>(&server), sizeof server), 0);
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

}  // namespace sis
