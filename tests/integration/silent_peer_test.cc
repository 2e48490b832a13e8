// A client whose machine vanishes: no bytes come any more, and no end of the connection either.
#include <gtest/gtest.h>

#include <string>

#include "absl/time/clock.h"
#include "server/testing/live_server.h"
#include "tests/integration/http2_peer.h"
#include "tests/integration/metrics_page.h"

namespace sis {
namespace {

TEST(SilentPeerTest, IsDisconnectedWithItsStreamsIfItAnswersNoPing) {
  ServerOptions options = LiveServer::Options();
  options.admin = "127.0.0.1:0";
  options.connections.silence = absl::Milliseconds(100);
  options.connections.answer_within = absl::Seconds(5);  // the machine may be busy
  LiveServer live(options);
  const auto count = [&](const std::string& started_or_handled) {
    return MetricValue(MetricsPage(live.admin_address()),
                       "grpc_server_" + started_or_handled +
                           "grpc_method=\"Append\",grpc_service=\"sis.v1.RatioService\","
                           "grpc_type=\"bidi_stream\"}")
        .value_or(0);
  };
  const std::string started = "started_total{";
  // No more requests come, which is how a stream ends.
  const std::string handled = "handled_total{grpc_code=\"OK\",";
  Http2Peer peer(live.grpc_address());
  peer.Open("Append");
  // A peer may be silent while it answers pings.
  peer.AnswerPings(10);
  EXPECT_EQ(count(started), 1);
  EXPECT_EQ(count(handled), 0);
  peer.SayNothingUntilClosed();
  while (count(handled) == 0) absl::SleepFor(absl::Milliseconds(20));
}

TEST(SilentPeerTest, IsDisconnectedWithoutStreamsToo) {
  ServerOptions options = LiveServer::Options();
  options.connections.silence = absl::Milliseconds(100);
  options.connections.answer_within = absl::Seconds(1);
  LiveServer live(options);
  Http2Peer peer(live.grpc_address());
  peer.SayNothingUntilClosed();
}

}  // namespace
}  // namespace sis
