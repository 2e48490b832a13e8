#include "server/admin/http_server.h"

#include <civetweb.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace sis {
namespace {

// Those who connect and say nothing hold a thread for so long.
constexpr char kThreads[] = "32";
constexpr char kRequestMilliseconds[] = "3000";
// Beyond these, and those that the threads are busy with, connections are refused.
constexpr char kWaitingConnections[] = "64";

// All that the page is made of comes from here; nobody may put it into a frame.
constexpr char kHeaders[] =
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Cross-Origin-Resource-Policy: same-origin\r\n"
    "Connection: close\r\n";

absl::string_view Reason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 503:
      return "Service Unavailable";
    default:
      return "Error";
  }
}

// Among those that a client names, commas between.
bool IsAmong(absl::string_view if_none_match, absl::string_view quoted) {
  for (const absl::string_view tag : absl::StrSplit(if_none_match, ", ", absl::SkipEmpty())) {
    if (tag == quoted || tag == "*") return true;
  }
  return false;
}

// To this server itself. Null if that doesn't succeed.
mg_connection* Connect(const std::string& address) {
  const size_t colon = address.rfind(':');
  char error[256];
  return mg_connect_client(address.substr(0, colon).c_str(), std::stoi(address.substr(colon + 1)),
                           /*use_ssl=*/0, error, sizeof(error));
}

std::string Text(const char* text) { return text == nullptr ? "" : text; }

}  // namespace

int HttpServer::Answer(mg_connection* connection) const {
  const mg_request_info& info = *mg_get_request_info(connection);
  const absl::string_view method = info.request_method;
  HttpResponse response;
  std::string headers = kHeaders;
  if (method != "GET" && method != "HEAD") {
    response = {.status = 405, .body = "Only GET and HEAD.\n"};
    headers += "Allow: GET, HEAD\r\n";
  } else {
    response = handler_({.path = Text(info.local_uri),
                         .query = Text(info.query_string),
                         .authorization = Text(mg_get_header(connection, "Authorization"))});
  }
  if (response.status == 401) {
    // With Basic browsers ask for a name and a password. The page, which says that it wants JSON,
    // asks by itself.
    const bool page = Text(mg_get_header(connection, "Accept")) == "application/json";
    absl::StrAppend(&headers, "WWW-Authenticate: ", page ? "Bearer" : "Basic",
                    " realm=\"SIS\"\r\n");
  }
  if (response.etag.empty()) {
    headers += "Cache-Control: no-store\r\n";
  } else {
    const std::string quoted = absl::StrCat("\"", response.etag, "\"");
    absl::StrAppend(&headers, "Cache-Control: no-cache\r\nETag: ", quoted, "\r\n");
    if (response.status == 200 &&
        IsAmong(Text(mg_get_header(connection, "If-None-Match")), quoted)) {
      response = {.status = 304};
    }
  }
  if (response.status != 304) {
    absl::StrAppend(&headers, "Content-Type: ", response.content_type,
                    "\r\nContent-Length: ", response.body.size(), "\r\n");
  }
  const std::string head = absl::StrCat("HTTP/1.1 ", response.status, " ", Reason(response.status),
                                        "\r\n", headers, "\r\n");
  mg_write(connection, head.data(), head.size());
  if (method != "HEAD") mg_write(connection, response.body.data(), response.body.size());
  return response.status;
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Listen(const std::string& address,
                                                               Handler handler) {
  static const unsigned initialized = mg_init_library(MG_FEATURES_DEFAULT);
  (void)initialized;
  std::unique_ptr<HttpServer> server(new HttpServer(std::move(handler)));
  const char* options[] = {"listening_ports",
                           address.c_str(),
                           "num_threads",
                           kThreads,
                           "request_timeout_ms",
                           kRequestMilliseconds,
                           "connection_queue",
                           kWaitingConnections,
                           "enable_directory_listing",
                           "no",
                           nullptr};
  mg_callbacks callbacks = {};
  callbacks.begin_request = [](mg_connection* connection) {
    const void* self = mg_get_user_data(mg_get_context(connection));
    return static_cast<const HttpServer*>(self)->Answer(connection);
  };
  // CivetWeb says why it can't start only here, on the thread that starts it.
  static thread_local std::string problem;
  problem.clear();
  callbacks.log_message = [](const mg_connection*, const char* message) {
    problem = message;
    return 1;
  };
  server->context_ = mg_start(&callbacks, server.get(), options);
  if (server->context_ == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", address, ": ", problem));
  }
  mg_server_port port = {};
  mg_get_server_ports(server->context_, 1, &port);
  server->address_ = absl::StrCat(address.substr(0, address.rfind(':')), ":", port.port);
  return server;
}

HttpServer::~HttpServer() {
  if (context_ == nullptr) return;
  // Its threads wait for connections, and notice only every two seconds that they are to end. So
  // they get some.
  std::atomic<bool> stopped = false;
  std::thread wake([&] {
    while (!stopped) {
      if (mg_connection* connection = Connect(address_)) mg_close_connection(connection);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  });
  mg_stop(context_);
  stopped = true;
  wake.join();
}

}  // namespace sis
