#include "server/main/server.h"

#include <grpc/grpc.h>
#include <grpcpp/health_check_service_interface.h>
#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <iterator>
#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "proto/version.h"
#include "server/auth/addresses.h"
#include "server/main/check_options.h"
#include "server/main/own_port.h"
#include "server/store/counted_store.h"
#include "server/store/open_store.h"
#include "server/threads/steady_now.h"

namespace sis {
namespace {

constexpr std::chrono::milliseconds kJanitorPeriod = std::chrono::seconds(1);
// A server that is killed loses the counts of the last period.
constexpr int64_t kPeriodsPerStoredSteps = std::chrono::seconds(5) / kJanitorPeriod;
constexpr int64_t kPeriodsPerSample = ServerStatus::kSamplePeriod / kJanitorPeriod;
// These threads mostly wait for the store.
constexpr int kStoreThreads = 16;
// Large frames, because transport is the main cost of this service.
constexpr int kMaxFrameBytes = 1 << 20;
// Time for clients to disconnect after the server has announced its shutdown. Most do so at once.
constexpr std::chrono::milliseconds kFarewell(200);
// The port of an address before gRPC listens on it.
constexpr int kNotBound = -1;
// Time that the check of /livez waits for a byte on a connection.
constexpr absl::Duration kAcceptTimeout = absl::Seconds(3);

// Converts identities to callers with rights on runs. An identity without a name owns no runs.
Authorize CallersOf(const Authenticator& authenticator) {
  return [&authenticator](const grpc::CallbackServerContext& context,
                          absl::string_view method) -> absl::StatusOr<Caller> {
    absl::StatusOr<Identity> identity = authenticator.Authorize(context, method);
    if (!identity.ok()) return identity.status();
    const bool is_nobody = identity->name.empty();
    return Caller{.identity = std::move(identity->name),
                  .uses_all_runs = is_nobody || identity->role == Role::kAdmin,
                  .supersedes = identity->role >= Role::kTrainer};
  };
}

absl::Status CannotListen(absl::string_view address, absl::string_view why) {
  return absl::UnavailableError(absl::StrCat("cannot listen on ", address, ": ", why));
}

// Returns host:port with `port` as the port.
std::string WithPort(absl::string_view address, int port) {
  return absl::StrCat(address.substr(0, address.rfind(':') + 1), port);
}

// Returns the server's name in a shared store. It stays the same after a restart.
std::string NameOf(const ServerOptions& options) {
  char host[HOST_NAME_MAX + 1] = {};
  gethostname(host, HOST_NAME_MAX);
  const std::string_view first =
      std::string_view(options.listen).substr(0, options.listen.find(','));
  return absl::StrCat(host, ":", std::string(first.substr(first.rfind(':') + 1)));
}

// Keeps gRPC initialised until the process ends. After its last user gRPC would join its own
// threads, and one of them may sleep for 10 s.
void KeepGrpc() { [[maybe_unused]] static const bool kept = (grpc_init(), true); }

}  // namespace

Server::Server(const ServerOptions& options, std::unique_ptr<Store> store,
               std::unique_ptr<HttpPort> http, std::unique_ptr<Authenticator> authenticator)
    : store_(store == nullptr ? nullptr
                              : std::make_unique<CountedStore>(std::move(store), counted_)),
      registry_(options.cache_bytes, options.limits, SteadyNow),
      stored_cache_(store_ == nullptr
                        ? nullptr
                        : std::make_unique<StoredCache>(*store_, registry_, absl::Now)),
      runs_(registry_, stored_cache_.get()),
      backend_(ChooseBackend(options.backend, {.bytes = options.device_cache_bytes,
                                               .max_bytes = options.cache_bytes})),
      authenticator_(std::move(authenticator)),
      streams_(SteadyNow),
      workers_(options.evaluate_threads),
      store_threads_(store_ != nullptr ? kStoreThreads : 0),
      status_(registry_, rpc_metrics_, absl::Now),
      service_(MakeRatioService({runs_, *backend_.backend, workers_, store_threads_, streams_,
                                 rpc_metrics_, status_, CallersOf(*authenticator_),
                                 options.default_deadline})),
      run_idle_expiry_(options.run_idle_expiry),
      reload_interval_(options.security.reload_interval),
      http_(std::move(http)) {}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options) {
  absl::StatusOr<std::unique_ptr<Server>> server = StartOnce(options);
  // The first attempt found damage. The second one quarantines the damaged files.
  if (absl::IsDataLoss(server.status())) server = StartOnce(options);
  return server;
}

absl::StatusOr<std::unique_ptr<Server>> Server::StartOnce(const ServerOptions& options) {
  if (absl::Status status = CheckOptions(options); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<Authenticator>> authenticator =
      Authenticator::Make(options.security);
  if (!authenticator.ok()) return authenticator.status();
  if (absl::Status status = CheckProxyCertificate(options.security); !status.ok()) return status;
  // Opened first, so that probes see a live server while it recovers.
  std::unique_ptr<HttpPort> http;
  if (!options.admin.empty()) {
    absl::StatusOr<std::unique_ptr<HttpPort>> listening = HttpPort::Listen(options.admin);
    if (!listening.ok()) return listening.status();
    http = *std::move(listening);
  }
  const absl::Time begin = SteadyNow();
  absl::StatusOr<std::unique_ptr<Store>> store = OpenStore(options.store, NameOf(options));
  if (!store.ok()) return store.status();
  const absl::Duration opening = SteadyNow() - begin;
  std::unique_ptr<Server> server(
      new Server(options, *std::move(store), std::move(http), *std::move(authenticator)));
  if (absl::Status status = server->Recover(options.store, opening); !status.ok()) return status;
  if (absl::Status status = server->Listen(options); !status.ok()) return status;
  server->StartServing();
  server->janitor_ = std::thread([&server = *server] { server.KeepInOrder(); });
  return server;
}

absl::Status Server::Recover(const std::string& store, absl::Duration opening) {
  const absl::Time begin = SteadyNow();
  const absl::StatusOr<StoredRuns::Recovered> recovered = runs_.Recover();
  if (!recovered.ok()) {
    return absl::Status(recovered.status().code(),
                        absl::StrCat("store: ", recovered.status().message()));
  }
  recovery_seconds_ = absl::ToDoubleSeconds(opening + (SteadyNow() - begin));
  store_kind_ = store.substr(0, store.find(':'));
  store_description_ = store_kind_;
  if (recovered->runs > 0) {
    absl::StrAppend(&store_description_, ", with ", recovered->runs, " runs after ",
                    recovery_seconds_, " s");
  }
  for (const auto& [run_id, why] : recovered->damaged_steps) {
    std::cerr << "store: some steps of run '" << absl::CHexEscape(run_id)
              << "' are damaged and were not restored: " << why << std::endl;
  }
  if (const size_t runs = recovered->damaged_steps.size(); runs > 0) {
    absl::StrAppend(&store_description_, "; runs with damaged steps: ", runs);
  }
  if (const size_t runs = runs_.Quarantined().size(); runs > 0) {
    absl::StrAppend(&store_description_, "; quarantined runs: ", runs);
  }
  damaged_files_ = DamagedFiles(store);
  if (damaged_files_ > 0) {
    absl::StrAppend(&store_description_, "; damaged files in its folder 'lost': ", damaged_files_);
  }
  return absl::OkStatus();
}

void Server::CheckStore() {
  runs_.TakeInShared();
  const std::string reason(store_->CanPut().message());
  std::string before;
  {
    WriterLock lock(store_mutex_);
    before = std::exchange(read_only_reason_, reason);
  }
  // Without the lock, which probes take: a write to stderr may block.
  std::map<std::string, std::string> quarantined = runs_.Quarantined();
  for (const auto& [run_id, why] : quarantined) {
    if (logged_quarantined_.contains(run_id)) continue;
    std::cerr << "store: run '" << absl::CHexEscape(run_id) << "' is quarantined: " << why
              << std::endl;
  }
  logged_quarantined_ = std::move(quarantined);
  if (reason.empty() == before.empty()) return;
  std::cerr << "store: "
            << (reason.empty() ? "takes appends again"
                               : absl::StrCat("read-only, takes no appends: ", reason))
            << std::endl;
}

std::string Server::ReadOnlyReason() const {
  ReaderLock lock(store_mutex_);
  return read_only_reason_;
}

MetricFamilies Server::Collect() {
  using enum prometheus::MetricType;
  MetricFamilies families = CacheMetrics(registry_);
  const auto add = [&families](MetricFamilies more) {
    absl::c_move(more, std::back_inserter(families));
  };
  add(ProcessMetrics());
  add({{"sis_build_info",
        "1, with the version, the backend and the store.",
        Gauge,
        {Metric(Gauge, 1,
                {{"backend", std::string(backend_name())},
                 {"store", store_kind_},
                 {"version", kVersion}})}},
       Family("sis_store_read_only", "1 while the store refuses appends, because it has no space.",
              Gauge, ReadOnlyReason().empty() ? 0 : 1),
       Family("sis_store_damaged_files",
              "Damaged files of the store that this start or an earlier one quarantined in its "
              "folder 'lost'.",
              Gauge, damaged_files_),
       Family("sis_store_runs_quarantined",
              "Quarantined runs: not served, because their stored record can't be used. The store "
              "keeps all their data.",
              Gauge, runs_.Quarantined().size()),
       Family("sis_store_recovery_seconds", "Time from opening the store to being ready.", Gauge,
              recovery_seconds_)});
  if (const int64_t end = certificate_end_; end != 0) {
    add({Family("sis_tls_certificate_not_after_timestamp_seconds",
                "Expiry of the server's certificate, in seconds since 1970.", Gauge, end)});
  }
  prometheus::MetricFamily failed{"sis_reload_failed",
                                  "1 while reloaded files are invalid, so that their earlier "
                                  "version is in use.",
                                  Gauge,
                                  {}};
  for (const Reloads& reloads : reloads_) {
    failed.metric.push_back(Metric(Gauge, reloads.failed() ? 1 : 0, {{"files", reloads.what()}}));
  }
  if (!failed.metric.empty()) families.push_back(std::move(failed));
  add(counted_.Collect());
  if (!backend_.device_cache.empty()) add(DeviceCacheMetrics(*backend_.backend));
  return families;
}

void Server::StartServing() {
  if (store_ != nullptr) CheckStore();
  status_.SetIdentity(
      {.version = kVersion,
       .backend = absl::StrCat(std::string(backend_name()), " (", backend_reason(), ")"),
       .store = store_description_,
       .shared_store = store_ != nullptr && store_->shared()});
  status_.SetReady(true);
  if (http_ == nullptr) return;
  http_->StartServing({.metrics = [this] { return Collect(); },
                       .live = [this] { return AcceptsConnections(); },
                       .condition = [this] { return CurrentCondition(); }});
}

HttpPort::Condition Server::CurrentCondition() const {
  if (!AcceptsConnections()) return {.ready = false, .what = "takes no connections"};
  if (const std::string reason = ReadOnlyReason(); !reason.empty()) {
    return {.what = absl::StrCat("read-only, takes no appends: ", reason)};
  }
  return {};
}

bool Server::AcceptsConnections() const {
  return absl::c_all_of(own_ports_, [](const OwnPort& port) {
    return sis::AcceptsConnections(port, kAcceptTimeout);
  });
}

absl::Status Server::Listen(const ServerOptions& options) {
  KeepGrpc();
  std::shared_ptr<grpc::ServerCredentials> tls;
  if (options.security.has_tls()) {
    absl::StatusOr<std::unique_ptr<TlsFiles>> files = TlsFiles::Open(options.security);
    if (!files.ok()) return files.status();
    tls_files_ = *std::move(files);
    tls = tls_files_->Credentials();
  }
  WatchFiles(options.security);
  grpc::EnableDefaultHealthCheckService(true);
  const int max_message_bytes =
      static_cast<int>(std::min<int64_t>(options.max_message_bytes, INT32_MAX));
  grpc::ServerBuilder builder;
  builder.RegisterService(service_.get());
  builder.SetMaxReceiveMessageSize(max_message_bytes);
  builder.SetMaxSendMessageSize(max_message_bytes);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kMaxFrameBytes);
  // Otherwise two servers could share a port, and each would get some of the connections.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  LimitConnections(options.connections, builder);
  if (absl::Status status = StartGrpc(absl::StrSplit(options.listen, ','), tls, builder);
      !status.ok()) {
    return status;
  }
  grpc_server_->GetHealthCheckService()->SetServingStatus("sis.v1.RatioService", true);
  return absl::OkStatus();
}

absl::Status Server::StartGrpc(const std::vector<std::string>& addresses,
                               const std::shared_ptr<grpc::ServerCredentials>& tls,
                               grpc::ServerBuilder& builder) {
  std::vector<int> ports(addresses.size(), kNotBound);
  for (size_t i = 0; i < addresses.size(); ++i) {
    const bool is_unix = IsUnixSocket(addresses[i]);
    // gRPC would replace the socket of a running server.
    if (is_unix && IsTaken(addresses[i])) return CannotListen(addresses[i], "address in use");
    // A Unix socket needs no TLS: its bytes stay in the machine's kernel.
    const bool is_plain = tls == nullptr || is_unix;
    builder.AddListeningPort(addresses[i], is_plain ? grpc::InsecureServerCredentials() : tls,
                             &ports[i]);
  }
  grpc_server_ = builder.BuildAndStart();
  if (grpc_server_ == nullptr) {
    const size_t failed = absl::c_find(ports, kNotBound) - ports.begin();
    if (failed == ports.size()) return absl::InternalError("gRPC does not start");
    return CannotListen(
        addresses[failed],
        "address in use, or not an address of this machine (gRPC's messages above)");
  }
  for (size_t i = 0; i < addresses.size(); ++i) {
    const bool is_unix = IsUnixSocket(addresses[i]);
    const std::string bound = is_unix ? addresses[i] : WithPort(addresses[i], ports[i]);
    own_ports_.push_back({.address = bound, .tls = tls != nullptr && !is_unix});
    absl::StrAppend(&grpc_address_, i == 0 ? "" : ",", bound);
  }
  return absl::OkStatus();
}

Server::~Server() { Shutdown(); }

void Server::Shutdown(absl::Duration grace) {
  {
    WriterLock lock(mutex_);
    if (stopping_) return;
    stopping_ = true;
  }
  stop_.notify_all();
  // The steps below wait for calls in flight and for the store, perhaps until their deadlines. So
  // probes must see the shutdown first.
  status_.SetReady(false);
  if (http_ != nullptr) http_->StopServing();
  if (janitor_.joinable()) janitor_.join();
  if (grpc_server_ == nullptr) return;
  grpc_server_->GetHealthCheckService()->SetServingStatus(false);
  streams_.Close();
  EndCalls(grace);
}

void Server::EndCalls(absl::Duration grace) {
  // gRPC also waits, until the deadline, for idle connections and for calls that never end, such as
  // Watch of the health service. These are cancelled as soon as no call of our service is left.
  std::thread disconnect([&] {
    if (!streams_.AwaitNone(SteadyNow() + grace)) return;
    WriterLock lock(mutex_);
    if (!shut_down_) stop_.wait_for(mutex_, kFarewell);
    if (!shut_down_) grpc_server_cancel_all_calls(grpc_server_->c_server());
  });
  grpc_server_->Shutdown(absl::ToChronoTime(absl::Now() + grace));
  {
    WriterLock lock(mutex_);
    shut_down_ = true;
  }
  stop_.notify_all();
  disconnect.join();
  // All calls have ended, but ThreadSanitizer doesn't see gRPC's locks. Waiting by our own lock
  // shows it that the calls end before their data is destroyed.
  streams_.AwaitNone(absl::InfiniteFuture());
}

void Server::WatchFiles(const AuthOptions& options) {
  if (!options.identities.empty()) {
    reloads_.emplace_back("identities", [this] {
      const absl::StatusOr<bool> changed = authenticator_->Reload();
      // Ends streams whose identity was removed.
      if (changed.ok() && *changed) streams_.CancelDisallowed();
      return changed;
    });
  }
  if (tls_files_ != nullptr) {
    reloads_.emplace_back("tls", [this] {
      const absl::StatusOr<bool> changed = tls_files_->Reload();
      certificate_end_ = absl::ToUnixSeconds(tls_files_->certificate_end());
      return changed;
    });
  }
  if (!options.proxy_certificate.empty()) {
    reloads_.emplace_back("proxy_certificate",
                          [this, path = options.proxy_certificate]() -> absl::StatusOr<bool> {
                            const absl::StatusOr<absl::Time> end = CertificateExpiry(path);
                            if (!end.ok()) return end.status();
                            certificate_end_ = absl::ToUnixSeconds(*end);
                            return false;
                          });
  }
  for (Reloads& reloads : reloads_) reloads.Reload();
}

void Server::KeepInOrder() {
  const auto stopped = [this] {
    WriterLock lock(mutex_);
    if (!stopping_) stop_.wait_for(mutex_, kJanitorPeriod);
    return stopping_;
  };
  const int64_t periods_per_reload =
      std::max<int64_t>(1, absl::ToChronoMilliseconds(reload_interval_) / kJanitorPeriod);
  for (int64_t period = 1; !stopped(); ++period) {
    if (period % kPeriodsPerSample == 0) status_.Sample();
    if (period % periods_per_reload == 0) {
      for (Reloads& reloads : reloads_) reloads.Reload();
    }
    if (period % kPeriodsPerStoredSteps == 0) runs_.StoreStepsBehind();
    registry_.DropExpired();
    registry_.ChooseNamed();
    registry_.ShareInspection();
    if (stored_cache_ != nullptr) stored_cache_->RetryDropsBehind();
    runs_.ForgetIdle(run_idle_expiry_);
    streams_.CancelStalled();
    if (store_ != nullptr && !checking_store_.exchange(true)) {
      store_threads_.Schedule("", [this] {
        CheckStore();
        checking_store_ = false;
      });
    }
  }
}

}  // namespace sis
