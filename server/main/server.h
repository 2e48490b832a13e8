// The whole server: gRPC service, health, HTTP port.
#pragma once

#include <grpcpp/grpcpp.h>
#include <prometheus/registry.h>

#include <atomic>
#include <condition_variable>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/backend_choice.h"
#include "server/auth/authenticator.h"
#include "server/auth/reloads.h"
#include "server/auth/tls_files.h"
#include "server/cache/run_registry.h"
#include "server/main/own_port.h"
#include "server/main/server_options.h"
#include "server/metrics/http_port.h"
#include "server/metrics/metric_families.h"
#include "server/rpc/open_streams.h"
#include "server/rpc/ratio_service.h"
#include "server/rpc/rpc_metrics.h"
#include "server/rpc/server_status.h"
#include "server/store/store.h"
#include "server/store/stored_cache.h"
#include "server/store/stored_runs.h"
#include "server/threads/mutex.h"
#include "server/threads/worker_pool.h"

namespace sis {

class Server {
 public:
  // Starts a server, which serves when this returns. Returns Unavailable if an address can't be
  // listened on, InvalidArgument from CheckSecurity and for invalid files of `security`.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options);

  // Calls Shutdown.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Returns a description of the store and of the restored data.
  const std::string& store_description() const { return store_description_; }
  // Returns the addresses of gRPC, with the ports that were picked.
  const std::string& grpc_address() const { return grpc_address_; }
  // Returns an empty string if there is no HTTP port.
  std::string admin_address() const { return http_ == nullptr ? "" : http_->address(); }
  std::string_view backend_name() const { return backend_.backend->name(); }
  const std::string& backend_reason() const { return backend_.reason; }
  // Returns a description of the device's memory for blocks; empty without a device.
  const std::string& device_cache() const { return backend_.device_cache; }

  // Reports not serving, refuses new connections and calls, and waits for the calls in flight.
  // Cancels them after `grace`. Idempotent.
  void Shutdown(absl::Duration grace = absl::Seconds(5));

 private:
  // `store` is null for --store=memory, `http` if there is no HTTP port.
  Server(const ServerOptions& options, std::unique_ptr<Store> store, std::unique_ptr<HttpPort> http,
         std::unique_ptr<Authenticator> authenticator);
  // Returns DataLoss if damage makes the store unreadable.
  static absl::StatusOr<std::unique_ptr<Server>> StartOnce(const ServerOptions& options);
  // `store` is the argument of OpenStore, `opening` its duration.
  absl::Status Recover(const std::string& store, absl::Duration opening);
  absl::Status Listen(const ServerOptions& options);
  // Starts the server of `builder` at the addresses, with `tls` at those over TCP unless it is
  // null. Returns Unavailable with the address that can't be listened on.
  absl::Status StartGrpc(const std::vector<std::string>& addresses,
                         const std::shared_ptr<grpc::ServerCredentials>& tls,
                         grpc::ServerBuilder& builder);
  // Returns all metrics.
  MetricFamilies Collect();
  // Connects the HTTP port to the service.
  void StartServing();
  // Checks whether the store takes appends, reads the run records of other servers, and logs
  // changes and newly quarantined runs to stderr. Never runs twice concurrently.
  void CheckStore() ABSL_LOCKS_EXCLUDED(store_mutex_);
  // Returns the reason why the store is read-only; empty if it is not.
  std::string ReadOnlyReason() const ABSL_LOCKS_EXCLUDED(store_mutex_);
  // Returns the condition of the server, for probes.
  HttpPort::Condition CurrentCondition() const;
  // Returns true if the gRPC server accepts a connection at each of its addresses. Blocks for
  // seconds if it does not. Thread-safe once the server serves.
  bool AcceptsConnections() const;
  // Waits for the calls in flight, cancels the others after `grace`, and ends all connections.
  void EndCalls(absl::Duration grace);
  // The janitor thread: periodic work, such as dropping expired sequences.
  void KeepInOrder();
  // Reloads the files of identities, of TLS, and of a proxy's certificate, if they are used.
  void WatchFiles(const AuthOptions& options);

  // Members are destroyed from last to first: the HTTP port and the gRPC server before everything
  // that their handlers use.
  prometheus::Registry counted_;
  RpcMetrics rpc_metrics_{counted_};
  const std::unique_ptr<Store> store_;  // or null
  RunRegistry registry_;
  const std::unique_ptr<StoredCache> stored_cache_;  // null without a store
  StoredRuns runs_;
  const BackendChoice backend_;
  const std::unique_ptr<Authenticator> authenticator_;
  OpenStreams streams_;  // calls may last until the workers have stopped
  mutable Mutex store_mutex_;
  std::string read_only_reason_ ABSL_GUARDED_BY(store_mutex_);
  // Quarantined runs that were logged, with the reason. Only CheckStore accesses it.
  std::map<std::string, std::string> logged_quarantined_;
  std::atomic<bool> checking_store_ = false;
  WorkerPool workers_;
  WorkerPool store_threads_;  // without a store none
  ServerStatus status_;
  const std::unique_ptr<v1::RatioService::Service> service_;
  std::unique_ptr<TlsFiles> tls_files_;  // null without TLS
  std::unique_ptr<grpc::Server> grpc_server_;
  double recovery_seconds_ = 0;
  int64_t damaged_files_ = 0;
  const absl::Duration run_idle_expiry_;
  const absl::Duration reload_interval_;
  std::list<Reloads> reloads_;                // used by the janitor only
  std::atomic<int64_t> certificate_end_ = 0;  // of the certificate of TLS, since 1970; 0: none
  std::string store_kind_;                    // memory, rocksdb, redis or rediss
  std::string store_description_;
  std::string grpc_address_;
  std::vector<OwnPort> own_ports_;

  Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool shut_down_ ABSL_GUARDED_BY(mutex_) = false;
  std::condition_variable_any stop_;
  std::thread janitor_;
  const std::unique_ptr<HttpPort>
      http_;  // or null; destroyed first, as its threads call the server
};

}  // namespace sis
