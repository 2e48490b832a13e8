// The HTTP port for Prometheus and probes.
#pragma once

#include <prometheus/metric_family.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "server/threads/mutex.h"

struct mg_connection;
struct mg_context;

namespace sis {

// Answers GET and HEAD, already before the service starts:
//   /metrics  Prometheus' text format; empty before the service answers
//   /livez    200, or 503 if the service takes no connections
//   /readyz   200 while the service answers and accepts connections, otherwise 503
// A connection is for one request without a body. It takes one of a few threads, and must send its
// request within a second; further connections wait. Thread-safe.
class HttpPort {
 public:
  // The answer of /readyz while the service runs.
  struct Condition {
    bool ready = true;
    std::string what = "";  // an explanation of one line, or empty
  };
  // Called by several threads concurrently, until the port is destroyed.
  struct Service {
    std::function<std::vector<prometheus::MetricFamily>()> metrics;
    std::function<bool()> live = [] { return true; };
    std::function<Condition()> condition = [] { return Condition(); };
  };

  // `address` is host:port, where host is a name or an IPv4 address; port 0 picks a free one.
  // Returns Unavailable if the address can't be listened on.
  static absl::StatusOr<std::unique_ptr<HttpPort>> Listen(const std::string& address);
  // Waits for the requests that are being answered.
  ~HttpPort();
  HttpPort(const HttpPort&) = delete;
  HttpPort& operator=(const HttpPort&) = delete;

  // The address with the port that was picked.
  const std::string& address() const { return address_; }

  // Uses `service` from now on.
  void StartServing(Service service) ABSL_LOCKS_EXCLUDED(mutex_);
  // Reports not ready from now on. Still serves metrics.
  void StopServing() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Response {
    int status = 200;
    std::string body;
    std::string content_type = "text/plain; charset=utf-8";
  };
  enum class State { kStarting, kServing, kStopping };

  HttpPort() = default;
  static int Handle(mg_connection* connection);
  Response Answer(const std::string& path) const ABSL_LOCKS_EXCLUDED(mutex_);

  mutable Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kStarting;
  Service service_ ABSL_GUARDED_BY(mutex_);
  std::string problem_ ABSL_GUARDED_BY(mutex_);  // CivetWeb's first message
  std::string address_;
  mg_context* context_ = nullptr;  // owned
};

}  // namespace sis
