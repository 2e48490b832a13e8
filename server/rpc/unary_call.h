// The server's end of a call with one answer.
#pragma once

#include <grpcpp/grpcpp.h>

#include "server/rpc/open_streams.h"
#include "server/rpc/reaction_order.h"

namespace sis {

// Counts as a call until its answer has been sent. Owns itself.
class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  explicit UnaryCall(OpenStreams& streams) : call_(streams) { order_.HandOn(); }
  void OnDone() override {
    order_.Begin();
    delete this;
  }

 private:
  const OpenStreams::Call call_;
  ReactionOrder order_;
};

}  // namespace sis
