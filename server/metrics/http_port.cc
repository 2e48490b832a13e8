#include "server/metrics/http_port.h"

#include <civetweb.h>
#include <prometheus/text_serializer.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace sis {
namespace {

constexpr int kThreads = 8;
// Maximum number of connections that wait for a thread.
constexpr int kMaxWaiting = 120;

// Returns true if a request announces a body. The port reads no bodies.
bool HasBody(mg_connection* connection) {
  return mg_get_request_info(connection)->content_length > 0 ||
         mg_get_header(connection, "Transfer-Encoding") != nullptr;
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpPort>> HttpPort::Listen(const std::string& address) {
  const std::string threads = absl::StrCat(kThreads);
  const std::string queue = absl::StrCat(kMaxWaiting);
  const char* options[] = {
      "listening_ports", address.c_str(),      "num_threads", threads.c_str(), "connection_queue",
      queue.c_str(),     "request_timeout_ms", "1000",        nullptr};
  mg_callbacks callbacks = {};
  callbacks.begin_request = Handle;
  callbacks.log_message = [](const mg_connection* connection, const char* message) {
    HttpPort* port = static_cast<HttpPort*>(mg_get_user_data(mg_get_context(connection)));
    WriterLock lock(port->mutex_);
    if (port->problem_.empty()) port->problem_ = message;
    return 1;
  };
  std::unique_ptr<HttpPort> port(new HttpPort);
  port->context_ = mg_start(&callbacks, port.get(), options);
  if (port->context_ == nullptr) {
    ReaderLock lock(port->mutex_);
    return absl::UnavailableError(absl::StrCat("cannot listen on ", address, ": ", port->problem_));
  }
  mg_server_port listening = {};
  mg_get_server_ports(port->context_, 1, &listening);
  port->address_ = absl::StrCat(address.substr(0, address.rfind(':')), ":", listening.port);
  return port;
}

HttpPort::~HttpPort() {
  if (context_ == nullptr) return;
  // CivetWeb notices that it must stop only every 2 s, or when a client connects.
  std::atomic<bool> stopped = false;
  std::thread visitor([&] {
    const size_t colon = address_.rfind(':');
    const std::string host = address_.substr(0, colon);
    while (!stopped) {
      char error[256];
      mg_connection* connection = mg_connect_client(
          host.c_str(), std::stoi(address_.substr(colon + 1)), /*use_ssl=*/0, error, sizeof error);
      if (connection != nullptr) mg_close_connection(connection);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  });
  mg_stop(context_);
  stopped = true;
  visitor.join();
}

void HttpPort::StartServing(Service service) {
  WriterLock lock(mutex_);
  service_ = std::move(service);
  state_ = State::kServing;
}

void HttpPort::StopServing() {
  WriterLock lock(mutex_);
  state_ = State::kStopping;
}

int HttpPort::Handle(mg_connection* connection) {
  const auto* port = static_cast<const HttpPort*>(mg_get_user_data(mg_get_context(connection)));
  const mg_request_info& request = *mg_get_request_info(connection);
  const absl::string_view method = request.request_method;
  const auto refuse = [&](int status, const char* why) {
    // Also closes the connection, instead of reading a body.
    mg_send_http_error(connection, status, "%s", why);
    return status;
  };
  if (method != "GET" && method != "HEAD") return refuse(405, "only GET and HEAD\n");
  if (HasBody(connection)) return refuse(413, "no request has a body here\n");
  const Response response = port->Answer(request.local_uri);
  if (response.status != 200) return refuse(response.status, response.body.c_str());
  mg_send_http_ok(connection, response.content_type.c_str(), response.body.size());
  if (method == "GET") mg_write(connection, response.body.data(), response.body.size());
  return response.status;
}

HttpPort::Response HttpPort::Answer(const std::string& path) const {
  State state;
  Service service;
  {
    ReaderLock lock(mutex_);
    state = state_;
    service = service_;
  }
  if (path == "/metrics") {
    std::vector<prometheus::MetricFamily> families;
    if (service.metrics != nullptr) families = service.metrics();
    return {.body = prometheus::TextSerializer().Serialize(families),
            .content_type = "text/plain; version=0.0.4; charset=utf-8"};
  }
  if (path == "/livez") {
    if (state == State::kServing && !service.live())
      return {.status = 503, .body = "takes no connections\n"};
    return {.body = "alive\n"};
  }
  if (path == "/readyz") {
    if (state == State::kStarting) return {.status = 503, .body = "starting\n"};
    if (state == State::kStopping) return {.status = 503, .body = "stopping\n"};
    const Condition condition = service.condition();
    const std::string more = condition.what.empty() ? "" : absl::StrCat(condition.what, "\n");
    if (!condition.ready) return {.status = 503, .body = absl::StrCat("not ready\n", more)};
    return {.body = absl::StrCat("ready\n", more)};
  }
  return {.status = 404, .body = "only /metrics, /livez and /readyz\n"};
}

}  // namespace sis
