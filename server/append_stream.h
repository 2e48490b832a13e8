// The server's end of one Append stream.
#pragma once

#include <google/protobuf/arena.h>
#include <grpcpp/grpcpp.h>

#include <optional>

#include "server/ingest.h"
#include "server/reaction_order.h"
#include "server/room_queue.h"
#include "server/rpc_timer.h"
#include "server/run_registry.h"
#include "server/store_threads.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// Reads a message, answers it, reads the next: a worker that is faster than the cache waits in its
// own writes. So it does while a batch waits for room, in the registry's queue; no thread waits.
// Holds one message at a time. Owns itself; the registry and the metrics must outlive the server.
class AppendStream final : public grpc::ServerBidiReactor<v1::AppendRequest, v1::AppendResponse>,
                           private RoomQueue::Waiter {
 public:
  AppendStream(RunRegistry& registry, Metrics& metrics, StoreThreads& store_threads);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  // Goes on with the batch, and answers it or ends the stream.
  std::optional<RoomWanted> Resume(Turn turn) override;
  void GiveUp(const absl::Status& status) override;

  void ReadNext();
  void End(const absl::Status& status);
  void HandleRequest();
  // Once the batch is applied: stores it, then acks it.
  void Answer();
  absl::Status OpenIngest();

  RunRegistry& registry_;
  StoreThreads& store_threads_;
  const RpcTimer timer_;
  ReactionOrder order_;
  absl::StatusCode code_ = absl::StatusCode::kOk;
  std::optional<Ingest> ingest_;
  // In an arena: a message of many small blocks is many small objects.
  google::protobuf::Arena arena_;
  v1::AppendRequest* request_ = nullptr;
  v1::AppendResponse response_;
};

}  // namespace sis
