// The HTTP port: metrics for Prometheus, and the questions of probes.
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

// Answers GET and HEAD, from before the service does:
//   /metrics  Prometheus' text format; empty before the service answers
//   /livez    200, or 503 if the service takes no connections
//   /readyz   200 while the service answers and accepts connections, otherwise 503
// A connection is for one request without a body. It takes one of a few threads, and must send its
// request within a second; further connections wait. Thread-safe.
class HttpPort {
 public:
  // What /readyz reports of a service that answers.
  struct Condition {
    bool ready = true;
    std::string what = "";  // a line for people, or nothing
  };
  // Called by several threads at once, until the port is destroyed.
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

  // Asks `service` from now on.
  void StartServing(Service service) ABSL_LOCKS_EXCLUDED(mutex_);
  // From now on the service is not ready. Its metrics are still served.
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
