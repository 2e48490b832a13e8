// The server side of one FetchTopK stream.
#pragma once

#include <grpcpp/grpcpp.h>

#include <optional>

#include "absl/status/status.h"
#include "server/fetch/fetch.h"
#include "server/rpc/call_deadline.h"
#include "server/rpc/open_streams.h"
#include "server/rpc/reaction_order.h"
#include "server/rpc/resources.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// Makes a message when the previous one is written, so that a slow trainer costs one message of
// memory, plus gRPC's buffers. Deletes itself.
class FetchStream final : public grpc::ServerWriteReactor<v1::FetchTopKResponse>,
                          private OpenStreams::Stream {
 public:
  // All arguments must outlive the call.
  FetchStream(grpc::CallbackServerContext& context, const Resources& resources,
              const v1::FetchTopKRequest& request);

  void OnWriteDone(bool ok) override;
  void OnDone() override;

 private:
  void Close() override {}  // a fetch ends by itself

  absl::Status Open(const v1::FetchTopKRequest& request);
  void WriteNext();
  void End(const absl::Status& status);

  const CallDeadline deadline_;
  ReactionOrder order_;
  absl::StatusCode code_ = absl::StatusCode::kOk;
  std::optional<Fetch> fetch_;
  v1::FetchTopKResponse response_;
};

}  // namespace sis
