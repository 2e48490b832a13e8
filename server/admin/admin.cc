#include "server/admin/admin.h"

#include <prometheus/text_serializer.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/page/page_files.h"
#include "client/page/token_texts.h"
#include "server/admin/api.h"
#include "server/admin/authorization.h"

namespace sis {
namespace {

constexpr char kJson[] = "application/json";

int HttpStatus(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kDeadlineExceeded:
      return 503;
    default:
      return 500;
  }
}

HttpResponse JsonError(const absl::Status& status) {
  return {.status = HttpStatus(status), .content_type = kJson, .body = ErrorAsJson(status)};
}

std::string ContentType(absl::string_view name) {
  if (absl::EndsWith(name, ".html")) return "text/html; charset=utf-8";
  if (absl::EndsWith(name, ".css")) return "text/css; charset=utf-8";
  if (absl::EndsWith(name, ".js")) return "text/javascript; charset=utf-8";
  if (absl::EndsWith(name, ".svg")) return "image/svg+xml";
  return "text/plain; charset=utf-8";
}

absl::StatusOr<std::string> TokenTextsAsJson(const std::string& tokenizer) {
  const absl::StatusOr<TokenTexts> texts = ReadTokenTexts(tokenizer);
  if (!texts.ok()) {
    return absl::Status(texts.status().code(),
                        absl::StrCat("--tokenizer: ", texts.status().message()));
  }
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [id, text] : *texts) json[absl::StrCat(id)] = text;
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

HttpResponse AnswerPage(absl::string_view path) {
  absl::string_view name = absl::StripPrefix(path, "/");
  if (name.empty()) name = "index.html";
  for (const PageFile& file : PageFiles()) {
    if (file.name != name) continue;
    return {.content_type = ContentType(name),
            .body = std::string(file.bytes),
            .etag = std::string(file.digest)};
  }
  return {.status = 404, .body = "Nothing is here. The page is at /\n"};
}

}  // namespace

absl::Status CheckTokenizer(const std::string& tokenizer) {
  return TokenTextsAsJson(tokenizer).status();
}

absl::StatusOr<std::unique_ptr<Admin>> Admin::Listen(const std::string& address,
                                                     const std::string& tokenizer,
                                                     std::vector<std::string> hosts) {
  std::unique_ptr<Admin> admin(new Admin);
  if (!tokenizer.empty()) {
    absl::StatusOr<std::string> json = TokenTextsAsJson(tokenizer);
    if (!json.ok()) return json.status();
    admin->token_texts_ = *std::move(json);
  }
  absl::StatusOr<std::unique_ptr<HttpServer>> http = HttpServer::Listen(
      address, std::move(hosts),
      {.answer = [&admin = *admin](const auto& request) { return admin.Answer(request); },
       .at_once = [&admin = *admin](const auto& request) { return admin.AnswerProbe(request); }});
  if (!http.ok()) return http.status();
  admin->http_ = *std::move(http);
  return admin;
}

void Admin::Show(Collect collect) {
  WriterLock lock(mutex_);
  collect_ = std::move(collect);
}

void Admin::StartServing(const std::shared_ptr<grpc::Channel>& channel, Access access,
                         std::function<Condition()> look) {
  WriterLock lock(mutex_);
  access_ = std::move(access);
  look_ = std::move(look);
  service_ = v1::RatioService::NewStub(channel);
}

void Admin::StopServing() {
  WriterLock lock(mutex_);
  service_ = nullptr;
  stopped_ = true;
}

std::optional<HttpResponse> Admin::AnswerProbe(const HttpRequest& request) {
  if (request.path == "/healthz") return HttpResponse{.body = "alive\n"};
  if (request.path == "/readyz") return Ready();
  return std::nullopt;
}

HttpResponse Admin::Answer(const HttpRequest& request) {
  absl::string_view path = request.path;
  if (path == "/metrics") return Metrics();
  if (path == "/token_texts.json") return TextsOfTokens();
  if (absl::ConsumePrefix(&path, "/api/")) return Api(path, request);
  return AnswerPage(path);
}

HttpResponse Admin::TextsOfTokens() const {
  // Not 404: every page asks, and a browser's console would complain.
  if (token_texts_.empty()) return {.content_type = kJson, .body = "null\n"};
  return {.content_type = kJson,
          .body = token_texts_,
          .etag = absl::StrCat(absl::Hex(std::hash<std::string>()(token_texts_)))};
}

HttpResponse Admin::Ready() {
  std::function<Condition()> look;
  {
    ReaderLock lock(mutex_);
    if (service_ == nullptr) return {.status = 503, .body = stopped_ ? "stopping\n" : "starting\n"};
    look = look_;
  }
  const Condition condition = look ? look() : Condition();
  const std::string more = condition.what.empty() ? "" : absl::StrCat(condition.what, "\n");
  if (!condition.ready) return {.status = 503, .body = absl::StrCat("not ready\n", more)};
  return {.body = absl::StrCat("ready\n", more)};
}

HttpResponse Admin::Metrics() {
  Collect collect;
  {
    ReaderLock lock(mutex_);
    collect = collect_;
  }
  std::vector<prometheus::MetricFamily> families;
  if (collect != nullptr) families = collect();
  return {.content_type = "text/plain; version=0.0.4; charset=utf-8",
          .body = prometheus::TextSerializer().Serialize(families)};
}

HttpResponse Admin::Api(absl::string_view method, const HttpRequest& request) {
  std::shared_ptr<v1::RatioService::StubInterface> called;
  Access access;
  {
    ReaderLock lock(mutex_);
    called = service_;
    access = access_;
  }
  if (called == nullptr) return JsonError(absl::UnavailableError("the service is not serving"));
  if (!access.refusal.empty()) return JsonError(absl::PermissionDeniedError(access.refusal));
  absl::StatusOr<std::string> authorization = AuthorizationOfCall(request.authorization);
  if (!authorization.ok()) return JsonError(authorization.status());
  if (authorization->empty() && !access.token.empty()) authorization = "Bearer " + access.token;
  absl::StatusOr<std::string> json = CallForJson(*called, method, request.query, *authorization);
  if (!json.ok()) return JsonError(json.status());
  return {.content_type = kJson, .body = *std::move(json)};
}

}  // namespace sis
