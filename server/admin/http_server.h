// GET over HTTP/1.1, for a person's browser, probes and Prometheus.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

struct mg_connection;
struct mg_context;

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

// Every connection is for one request, and has a thread until it is answered, or for some seconds.
class HttpServer {
 public:
  using Handler = std::function<HttpResponse(const HttpRequest&)>;

  // `address` is host:port; port 0 picks a free one. The handler is called for GET and HEAD, by
  // several threads at once. Unavailable says why the address can't be listened on.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Listen(const std::string& address,
                                                            Handler handler);
  // When it returns the handler is not called any more. Takes up to some seconds.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // With the port that was picked.
  const std::string& address() const { return address_; }

 private:
  explicit HttpServer(Handler handler) : handler_(std::move(handler)) {}
  int Answer(mg_connection* connection) const;

  const Handler handler_;
  std::string address_;
  mg_context* context_ = nullptr;
};

}  // namespace sis
