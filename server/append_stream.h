// The server's end of one Append stream.
#pragma once

#include <grpcpp/grpcpp.h>

#include <optional>

#include "server/ingest.h"
#include "server/reaction_order.h"
#include "server/room_queue.h"
#include "server/rpc_timer.h"
#include "server/run_registry.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// Reads a message, answers it, reads the next: a worker that is faster than the cache waits in its
// own writes. So it does while a batch waits for room, in the registry's queue; no thread waits.
// Holds one message at a time. Owns itself; the registry and the metrics must outlive the server.
class AppendStream final : public grpc::ServerBidiReactor<v1::AppendRequest, v1::AppendResponse>,
                           private RoomQueue::Waiter {
 public:
  AppendStream(RunRegistry& registry, Metrics& metrics);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  // Goes on with the batch, and answers it or ends the stream.
  std::optional<RoomWanted> Resume(Turn turn) override;
  void GiveUp(const absl::Status& status) override;

  void End(const absl::Status& status);
  absl::Status OpenIngest();

  RunRegistry& registry_;
  const RpcTimer timer_;
  ReactionOrder order_;
  absl::StatusCode code_ = absl::StatusCode::kOk;
  std::optional<Ingest> ingest_;
  v1::AppendRequest request_;
  v1::AppendResponse response_;
};

}  // namespace sis
