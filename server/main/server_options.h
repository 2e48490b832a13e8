// The options of a server.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "kernels/backend_choice.h"
#include "server/auth/auth_options.h"
#include "server/auth/connection_limits.h"
#include "server/cache/limits.h"

namespace sis {

struct ServerOptions {
  // One or several host:port or unix:path, separated by commas. Port 0 picks a free port. Addresses
  // that other machines can reach need `security`.
  std::string listen = "127.0.0.1:50051";
  // host:port of metrics and probes over HTTP (server/metrics/http_port.h); empty for none.
  std::string admin = "127.0.0.1:9464";
  int64_t cache_bytes = int64_t{4} << 30;
  int64_t max_message_bytes = int64_t{64} << 20;
  int evaluate_threads = 2;
  BackendKind backend = BackendKind::kAuto;
  // Memory of the device for copies of blocks; unset: a quarter of the free memory, at most
  // cache_bytes.
  std::optional<int64_t> device_cache_bytes;
  // See OpenStore.
  std::string store = "memory";
  // Runs that no call names for longer are deleted.
  absl::Duration run_idle_expiry = absl::InfiniteDuration();
  // Deadline of each response to a client that sets none.
  absl::Duration default_deadline = absl::Minutes(5);
  Limits limits;
  AuthOptions security;
  ConnectionLimits connections;
};

}  // namespace sis
