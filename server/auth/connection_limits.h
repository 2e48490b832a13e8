// Limits of connections.
#pragma once

#include <grpcpp/server_builder.h>

#include <cstdint>

#include "absl/time/time.h"

namespace sis {

struct ConnectionLimits {
  // Maximum number of concurrent calls of one connection; others wait in the client.
  int max_streams_per_connection = 1024;
  // Memory of connections, and of messages being received or answered, in bytes. Above it, gRPC
  // closes idle connections and ends calls: UNAVAILABLE or RESOURCE_EXHAUSTED.
  int64_t grpc_memory_bytes = int64_t{4} << 30;
  // Minimum time between two pings of a client. A client that violates it three times is
  // disconnected.
  absl::Duration ping_interval = absl::Seconds(20);
  // The server pings a client that was silent for `silence`. The connection ends if no answer
  // comes within `answer_within`, because a vanished machine does not close its connections.
  absl::Duration silence = absl::Minutes(2);
  absl::Duration answer_within = absl::Minutes(1);
};

void LimitConnections(const ConnectionLimits& limits, grpc::ServerBuilder& builder);

}  // namespace sis
