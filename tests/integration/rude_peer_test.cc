// Clients that do not heed what the server tells them of its limits (docs/security.md), as gRPC's
// libraries do for others.
#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "server/testing/live_server.h"
#include "tests/integration/http2_peer.h"

namespace sis {
namespace {

TEST(RudePeerTest, IsCutOffAfterThreePingsTooMany) {
  LiveServer live;
  Http2Peer peer(live.grpc_address());
  int answered = 0;
  while (answered < 100 && peer.Ping()) ++answered;
  // The first one is in time, and perhaps the second.
  EXPECT_GE(answered, 3);
  EXPECT_LE(answered, 5);
  peer.SayNothingUntilClosed();
}

TEST(RudePeerTest, MayPingOnceInAnInterval) {
  ServerOptions options = LiveServer::Options();
  options.connections.ping_interval = absl::Milliseconds(50);
  LiveServer live(options);
  Http2Peer peer(live.grpc_address());
  for (int ping = 0; ping < 10; ++ping) {
    ASSERT_TRUE(peer.Ping()) << ping;
    // From its answer on, so that the next one can't be early.
    absl::SleepFor(options.connections.ping_interval + absl::Milliseconds(5));
  }
}

TEST(RudePeerTest, ACallWithTooMuchMetadataEnds) {
  LiveServer live;
  Http2Peer peer(live.grpc_address());
  peer.Open("Append", /*stream=*/1, /*metadata_bytes=*/16 << 10);
  Http2Peer::Frame frame;
  do {
    frame = peer.Next();
  } while (!peer.closed() && frame.stream == 0);
  EXPECT_EQ(frame.stream, 1);
  EXPECT_TRUE(frame.type == Http2Peer::kHeaders || frame.type == Http2Peer::kReset);
}

TEST(RudePeerTest, OneCallTooManyEndsTheConnection) {
  ServerOptions options = LiveServer::Options();
  options.connections.max_streams_per_connection = 2;
  LiveServer live(options);
  Http2Peer peer(live.grpc_address());
  peer.Open("Append", 1);
  peer.Open("Append", 3);
  EXPECT_TRUE(peer.Ping());
  peer.Open("Append", 5);
  peer.SayNothingUntilClosed();
}

}  // namespace
}  // namespace sis
