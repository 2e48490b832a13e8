// The server's end of one FetchTopK stream.
#pragma once

#include <grpcpp/grpcpp.h>

#include <optional>

#include "absl/status/status.h"
#include "server/fetch/fetch.h"
#include "server/rpc/call_deadline.h"
#include "server/rpc/open_streams.h"
#include "server/rpc/reaction_order.h"
#include "server/rpc/resources.h"

namespace sis {

// Makes a message when the one before is written, so a slow trainer costs one message of memory,
// and what gRPC buffers. gRPC sends the arrays from where they were decoded. Owns itself.
class FetchStream final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                          private OpenStreams::Stream {
 public:
  // Everything must outlive the call.
  FetchStream(const grpc::CallbackServerContext& context, const Resources& resources,
              const grpc::ByteBuffer& request);

  void OnWriteDone(bool ok) override;
  void OnDone() override;

 private:
  void Close() override {}  // ends by itself

  absl::Status Open(const grpc::ByteBuffer& request);
  void WriteNext();
  void End(const absl::Status& status);

  const CallDeadline deadline_;
  ReactionOrder order_;
  absl::StatusCode code_ = absl::StatusCode::kOk;
  std::optional<Fetch> fetch_;
  grpc::ByteBuffer response_;
};

}  // namespace sis
