// GET over HTTP/1.1, for a person's browser, probes and Prometheus.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace sis {

struct HttpRequest {
  std::string path;   // decoded
  std::string query;  // what follows '?', not decoded
  std::string authorization = "";
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body = "";
  // Empty: nobody may keep the answer. Else whoever has it asks whether it is still the same.
  std::string etag = "";
};

struct HttpHandlers {
  // For all GET and HEAD that `at_once` leaves; by several threads at once.
  std::function<HttpResponse(const HttpRequest&)> answer;
  // Asked first, on the one thread that all connections are read on: whatever the others are busy
  // with, it is not waited for, and it may not wait. Null: nothing is answered so.
  std::function<std::optional<HttpResponse>(const HttpRequest&)> at_once = nullptr;
};

// A connection is for one request without a body, has as a whole some seconds for it, and takes no
// thread but while its handler runs. Of too many connections that have not said yet what they want,
// or that go on sending a body though it is refused, the oldest is closed; what comes while too
// much is being answered gets 503.
class HttpServer {
 public:
  // Of each kind, at a time.
  static constexpr size_t kMaxReading = 256;   // have not said yet what they want
  static constexpr size_t kMaxAnswering = 64;  // wait for a handler, or their answer is under way
  static constexpr size_t kMaxLeaving = 64;    // are refused, and send a body
  static constexpr size_t kMaxConnections = kMaxReading + kMaxAnswering + kMaxLeaving;

  // `address` is host:port; port 0 picks a free one. `hosts`: names that requests may use for this
  // server besides those of IsOwnHost. Unavailable says why the address can't be listened on.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Listen(const std::string& address,
                                                            std::vector<std::string> hosts,
                                                            HttpHandlers handlers);
  // When it returns no handler is called any more; it waits for those that run.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // With the port that was picked.
  const std::string& address() const { return address_; }

 private:
  class Connections;

  HttpServer();

  std::unique_ptr<Connections> connections_;
  std::string address_;
};

}  // namespace sis
