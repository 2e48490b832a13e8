// The server's end of one FetchTopK stream.
#pragma once

#include <grpcpp/grpcpp.h>

#include <optional>

#include "server/fetch.h"
#include "server/reaction_order.h"
#include "server/rpc_timer.h"
#include "server/run_registry.h"
#include "server/store_threads.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// Makes a message when the one before is written, so a slow trainer costs one message of memory.
// Owns itself.
class FetchStream final : public grpc::ServerWriteReactor<v1::FetchTopKResponse> {
 public:
  // The request must outlive the call.
  FetchStream(RunRegistry& registry, Metrics& metrics, StoreThreads& store_threads,
              const v1::FetchTopKRequest& request);

  void OnWriteDone(bool ok) override;
  void OnDone() override;

 private:
  absl::Status Open(RunRegistry& registry, const v1::FetchTopKRequest& request);
  void WriteNext();
  void End(const absl::Status& status);

  const RpcTimer timer_;
  ReactionOrder order_;
  absl::StatusCode code_ = absl::StatusCode::kOk;
  std::optional<Fetch> fetch_;
  v1::FetchTopKResponse response_;
};

}  // namespace sis
