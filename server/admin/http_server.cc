#include "server/admin/http_server.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <limits>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/admin/gzip.h"
#include "server/admin/own_host.h"
#include "server/admin/query.h"

namespace sis {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using Error = boost::system::error_code;

// For a request as a whole, and for an answer.
constexpr std::chrono::seconds kRequestTime(3);
constexpr std::chrono::seconds kAnswerTime(10);
// How long a body that nobody wants is read on, so that its sender sees the answer.
constexpr std::chrono::seconds kFarewell(1);
constexpr std::chrono::milliseconds kUntilNextAccept(100);
constexpr size_t kMaxRequestBytes = 16 << 10;
constexpr size_t kHandlerThreads = 8;
// Below that compression gains nothing.
constexpr size_t kLeastCompressed = 1 << 10;

// All that the page is made of comes from here; nobody may put it into a frame.
constexpr char kContentSecurityPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

absl::string_view View(beast::string_view text) { return {text.data(), text.size()}; }

// Among those that a client names, commas between.
bool IsAmong(absl::string_view if_none_match, absl::string_view quoted) {
  for (const absl::string_view tag : absl::StrSplit(if_none_match, ", ", absl::SkipEmpty())) {
    if (tag == quoted || tag == "*") return true;
  }
  return false;
}

using Request = http::request_header<>;
using Response = http::response<http::string_body>;

Response MakeMessage(const Request& request, HttpResponse answer) {
  Response message(static_cast<http::status>(answer.status), request.version());
  message.set("Content-Security-Policy", kContentSecurityPolicy);
  message.set("X-Content-Type-Options", "nosniff");
  message.set("Referrer-Policy", "no-referrer");
  message.set("Cross-Origin-Resource-Policy", "same-origin");
  message.keep_alive(false);
  if (answer.status == 401) {
    // With Basic browsers ask for a name and a password. The page, which says that it wants JSON,
    // asks by itself.
    const bool page = request[http::field::accept] == "application/json";
    message.set(http::field::www_authenticate,
                absl::StrCat(page ? "Bearer" : "Basic", " realm=\"SIS\""));
  }
  if (answer.status == 405) message.set(http::field::allow, "GET, HEAD");
  if (answer.etag.empty()) {
    message.set(http::field::cache_control, "no-store");
    if (answer.body.size() >= kLeastCompressed &&
        AcceptsGzip(View(request[http::field::accept_encoding]))) {
      message.set(http::field::content_encoding, "gzip");
      answer.body = Gzipped(answer.body);
    }
  } else {
    const std::string quoted = absl::StrCat("\"", answer.etag, "\"");
    message.set(http::field::cache_control, "no-cache");
    message.set(http::field::etag, quoted);
    if (answer.status == 200 && IsAmong(View(request[http::field::if_none_match]), quoted)) {
      message.result(http::status::not_modified);
      return message;
    }
  }
  message.set(http::field::content_type, answer.content_type);
  message.content_length(answer.body.size());
  if (request.method() != http::verb::head) message.body() = std::move(answer.body);
  return message;
}

}  // namespace

// Everything but the handlers runs on one thread.
class HttpServer::Connections {
 public:
  Connections(std::vector<std::string> hosts, HttpHandlers handlers)
      : hosts_(std::move(hosts)), handlers_(std::move(handlers)) {}
  ~Connections() {
    io_.stop();
    if (thread_.joinable()) thread_.join();
    handler_threads_.stop();
    handler_threads_.join();
  }

  // Throws what the system says.
  uint16_t Listen(const std::string& host, const std::string& port) {
    Error no_ipv4;
    auto found = tcp::resolver(io_).resolve(tcp::v4(), host, port, no_ipv4);
    if (no_ipv4) found = tcp::resolver(io_).resolve(host, port);
    const tcp::endpoint endpoint = *found.begin();
    acceptor_.open(endpoint.protocol());
    acceptor_.set_option(tcp::acceptor::reuse_address(true));
    acceptor_.bind(endpoint);
    acceptor_.listen();
    Accept();
    thread_ = std::thread([this] { io_.run(); });
    return acceptor_.local_endpoint().port();
  }

 private:
  class Connection;

  void Accept();

  const std::vector<std::string> hosts_;
  const HttpHandlers handlers_;
  // Those of which no request has come yet, and those that send a body which nobody wants, the
  // oldest first; they take themselves out.
  std::list<Connection*> reading_;
  std::list<Connection*> leaving_;
  size_t answering_ = 0;
  asio::io_context io_{1};  // goes before what connections use
  tcp::acceptor acceptor_{io_};
  asio::steady_timer next_accept_{io_};
  asio::thread_pool handler_threads_{kHandlerThreads};
  std::thread thread_;
};

// Owned by what it waits for.
class HttpServer::Connections::Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, Connections& all) : stream_(std::move(socket)), all_(all) {
    parser_.header_limit(kMaxRequestBytes);
    parser_.body_limit(std::numeric_limits<uint64_t>::max());  // none is read
  }
  ~Connection() {
    if (answering_) --all_.answering_;
  }

  void Read() {
    place_ = all_.reading_.insert(all_.reading_.end(), this);
    stream_.expires_after(kRequestTime);
    http::async_read_header(stream_, buffer_, parser_,
                            [self = shared_from_this()](const Error& error, size_t) {
                              self->all_.reading_.erase(self->place_);
                              self->HasRead(error);
                            });
  }

  // What it waits for fails at once.
  void Cancel() { stream_.cancel(); }

 private:
  const Request& request() const { return parser_.get().base(); }

  void HasRead(const Error& error) {
    if (error == http::error::header_limit) return Write({.status = 431, .body = "Too long.\n"});
    if (error.category() == make_error_code(http::error::bad_method).category() &&
        error != http::error::end_of_stream && error != http::error::partial_message) {
      return Write({.status = 400, .body = absl::StrCat(error.message(), "\n")});
    }
    if (error) return;
    has_body_ = parser_.content_length().value_or(0) > 0 || parser_.chunked();
    const absl::string_view host = View(request()[http::field::host]);
    if (!IsOwnHost(host, all_.hosts_)) {
      return Write({.status = 421,
                    .body = "This server has another name. If it is to be called so too: "
                            "--admin_hosts (docs/security.md)\n"});
    }
    if (request().method() != http::verb::get && request().method() != http::verb::head) {
      return Write({.status = 405, .body = "Only GET and HEAD.\n"});
    }
    if (has_body_) return Write({.status = 413, .body = "No request has a body here.\n"});
    Answer();
  }

  void Answer() {
    const std::string target(View(request().target()));
    const size_t query = target.find('?');
    HttpRequest asked = {.path = PercentDecoded(target.substr(0, query)),
                         .query = query == target.npos ? "" : target.substr(query + 1),
                         .authorization = std::string(View(request()[http::field::authorization]))};
    if (all_.handlers_.at_once) {
      if (auto answer = all_.handlers_.at_once(asked)) return Write(*std::move(answer));
    }
    if (all_.answering_ >= kMaxAnswering) {
      return Write({.status = 503, .body = "Too much is being answered.\n"});
    }
    ++all_.answering_;
    answering_ = true;
    // The thread of the handler must not be the one that lets go of the connection.
    asio::post(
        all_.handler_threads_, [self = shared_from_this(), asked = std::move(asked)]() mutable {
          Connections& all = self->all_;
          auto message =
              std::make_unique<Response>(MakeMessage(self->request(), all.handlers_.answer(asked)));
          asio::post(all.io_, [self = std::move(self), message = std::move(message)]() mutable {
            self->Write(std::move(message));
          });
        });
  }

  void Write(HttpResponse answer) {
    Write(std::make_unique<Response>(MakeMessage(request(), std::move(answer))));
  }
  void Write(std::unique_ptr<Response> message) {
    message_ = std::move(message);
    stream_.expires_after(kAnswerTime);
    serializer_.emplace(*message_);
    const auto written = [self = shared_from_this()](const Error& error, size_t) {
      if (!error) self->Leave();
    };
    if (request().method() == http::verb::head) {
      http::async_write_header(stream_, *serializer_, written);
    } else {
      http::async_write(stream_, *serializer_, written);
    }
  }

  void Leave() {
    Error ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
    if (!has_body_) return;
    if (all_.leaving_.size() >= kMaxLeaving) all_.leaving_.front()->Cancel();
    place_ = all_.leaving_.insert(all_.leaving_.end(), this);
    stream_.expires_after(kFarewell);
    Discard();
  }
  // To close while bytes lie unread would throw away what has been written.
  void Discard() {
    buffer_.clear();
    stream_.async_read_some(buffer_.prepare(kMaxRequestBytes),
                            [self = shared_from_this()](const Error& error, size_t) {
                              if (!error) return self->Discard();
                              self->all_.leaving_.erase(self->place_);
                            });
  }

  beast::tcp_stream stream_;
  Connections& all_;
  beast::flat_buffer buffer_;
  http::request_parser<http::empty_body> parser_;
  std::list<Connection*>::iterator place_;  // among those that are read, or that leave
  bool has_body_ = false;
  bool answering_ = false;
  std::unique_ptr<Response> message_;
  std::optional<http::response_serializer<http::string_body>> serializer_;
};

void HttpServer::Connections::Accept() {
  acceptor_.async_accept([this](const Error& error, tcp::socket socket) {
    if (error) {
      // Out of descriptors, say: others may be free again later.
      next_accept_.expires_after(kUntilNextAccept);
      next_accept_.async_wait([this](const Error& stopped) {
        if (!stopped) Accept();
      });
      return;
    }
    if (reading_.size() >= kMaxReading) reading_.front()->Cancel();
    std::make_shared<Connection>(std::move(socket), *this)->Read();
    Accept();
  });
}

HttpServer::HttpServer() = default;
HttpServer::~HttpServer() = default;

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Listen(const std::string& address,
                                                               std::vector<std::string> hosts,
                                                               HttpHandlers handlers) {
  std::unique_ptr<HttpServer> server(new HttpServer);
  server->connections_ = std::make_unique<Connections>(std::move(hosts), std::move(handlers));
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  try {
    const uint16_t port = server->connections_->Listen(host, address.substr(colon + 1));
    server->address_ = absl::StrCat(address.substr(0, colon), ":", port);
  } catch (const boost::system::system_error& error) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", address, ": ", error.code().message()));
  }
  return server;
}

}  // namespace sis
