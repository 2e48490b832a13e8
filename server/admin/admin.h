// The admin port: a page for people, the same as JSON, metrics, and what probes ask.
#pragma once

#include <grpcpp/grpcpp.h>
#include <prometheus/metric_family.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/admin/http_server.h"
#include "server/threads/mutex.h"
#include "sis/v1/ratio_service.grpc.pb.h"

namespace sis {

// What Admin::Listen would say of a tokenizer that can't be read or understood.
absl::Status CheckTokenizer(const std::string& tokenizer);

// Answers from when it listens, before the service does:
//   /                the page, with the files it is made of
//   /api/METHOD      what RPCs that change nothing answer, as JSON; 503 while not serving. A token
//                    comes as of gRPC (Authorization: Bearer TOKEN), or as the password that a
//                    browser asks for
//   /metrics         for Prometheus
//   /token_texts.json  texts of tokens by id, if there is a tokenizer
//   /healthz         200 while the process lives
//   /readyz          200 while the service serves and takes connections, else 503
// Thread-safe.
class Admin {
 public:
  // `address` and `hosts` as HttpServer::Listen takes them. `tokenizer` is a file as ReadTokenTexts
  // takes it, so that the page shows the texts of tokens; without it the page shows their ids.
  static absl::StatusOr<std::unique_ptr<Admin>> Listen(const std::string& address,
                                                       const std::string& tokenizer = "",
                                                       std::vector<std::string> hosts = {});

  // What /readyz says of a service that serves.
  struct Condition {
    bool ready = true;
    std::string what = "";  // a line for people, or nothing
  };

  const std::string& address() const { return http_->address(); }

  // Shows Prometheus what this returns, which is called until the admin port has gone.
  using Collect = std::function<std::vector<prometheus::MetricFamily>()>;
  void Show(Collect collect) ABSL_LOCKS_EXCLUDED(mutex_);
  // Who may read what RPCs answer.
  struct Access {
    // With which those are answered who bring no token; empty: they need one, if the service asks.
    std::string token = "";
    // Why nobody may; empty: they may.
    std::string refusal = "";
  };
  // From now on the service answers, over this channel. `look`, which says at once, is called by
  // the thread that probes wait for; without it the service is ready.
  void StartServing(const std::shared_ptr<grpc::Channel>& channel, Access access,
                    std::function<Condition()> look = nullptr) ABSL_LOCKS_EXCLUDED(mutex_);
  // It will not answer any more.
  void StopServing() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Admin() = default;
  std::optional<HttpResponse> AnswerProbe(const HttpRequest& request);
  HttpResponse Answer(const HttpRequest& request);
  HttpResponse TextsOfTokens() const;
  HttpResponse Metrics();
  HttpResponse Ready();
  HttpResponse Api(absl::string_view method, const HttpRequest& request);

  mutable Mutex mutex_;
  Collect collect_ ABSL_GUARDED_BY(mutex_);
  // Null while it isn't serving.
  std::shared_ptr<v1::RatioService::StubInterface> service_ ABSL_GUARDED_BY(mutex_);
  std::function<Condition()> look_ ABSL_GUARDED_BY(mutex_);
  Access access_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::string token_texts_;           // JSON; empty without a tokenizer. Fixed before it listens.
  std::unique_ptr<HttpServer> http_;  // destroyed first
};

}  // namespace sis
