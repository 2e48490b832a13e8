// The server's end of one Append stream.
#pragma once

#include <grpcpp/grpcpp.h>

#include <optional>

#include "server/ingest.h"
#include "server/reaction_order.h"
#include "server/rpc_timer.h"
#include "server/run_registry.h"
#include "server/store_threads.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// Reads a message, answers it, reads the next: a worker that is faster than the cache waits in its
// own writes. Owns itself; the registry and the metrics must outlive the server.
class AppendStream final : public grpc::ServerBidiReactor<v1::AppendRequest, v1::AppendResponse> {
 public:
  AppendStream(RunRegistry& registry, Metrics& metrics, StoreThreads& store_threads);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;

 private:
  void End(const absl::Status& status);
  void HandleRequest();
  absl::Status Handle();

  RunRegistry& registry_;
  StoreThreads& store_threads_;
  const RpcTimer timer_;
  ReactionOrder order_;
  absl::StatusCode code_ = absl::StatusCode::kOk;
  std::optional<Ingest> ingest_;
  v1::AppendRequest request_;
  v1::AppendResponse response_;
};

}  // namespace sis
