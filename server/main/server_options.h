// What a server is started with.
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
  // host:port or unix:path, or several of them with commas between. Port 0 picks a free one. Only
  // this machine can connect unless `security` allows more.
  std::string listen = "127.0.0.1:50051";
  // host:port of metrics and probes over HTTP (server/metrics/http_port.h); empty for none.
  std::string admin = "127.0.0.1:9464";
  int64_t cache_bytes = int64_t{4} << 30;
  int64_t max_message_bytes = int64_t{64} << 20;
  int evaluate_threads = 2;
  BackendKind backend = BackendKind::kAuto;
  // Of the device that evaluates, for copies of blocks; not given: a quarter of what is free, at
  // most cache_bytes.
  std::optional<int64_t> device_cache_bytes;
  // As OpenStore takes it.
  std::string store = "memory";
  // A run that no call names for longer is deleted.
  absl::Duration run_idle_expiry = absl::InfiniteDuration();
  // Of calls whose clients set none, for each answer.
  absl::Duration default_deadline = absl::Minutes(5);
  Limits limits;
  AuthOptions security;
  ConnectionLimits connections;
};

}  // namespace sis
