// The server's end of one FetchTopK stream.
#pragma once

#include <grpcpp/grpcpp.h>

#include <optional>

#include "absl/status/status.h"
#include "server/fetch.h"
#include "server/reaction_order.h"
#include "server/rpc_timer.h"
#include "server/run_registry.h"
#include "server/store_threads.h"

namespace sis {

// Makes a message when the one before is written, so a slow trainer costs one message of memory,
// and what gRPC buffers. gRPC sends the arrays from where they were decoded. Owns itself.
class FetchStream final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  // The request must outlive the call.
  FetchStream(RunRegistry& registry, Metrics& metrics, StoreThreads& store_threads,
              const grpc::ByteBuffer& request);

  void OnWriteDone(bool ok) override;
  void OnDone() override;

 private:
  absl::Status Open(RunRegistry& registry, const grpc::ByteBuffer& request);
  void WriteNext();
  void End(const absl::Status& status);

  const RpcTimer timer_;
  ReactionOrder order_;
  absl::StatusCode code_ = absl::StatusCode::kOk;
  std::optional<Fetch> fetch_;
  grpc::ByteBuffer response_;
};

}  // namespace sis
