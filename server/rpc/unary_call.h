// The server's end of a call with one answer.
#pragma once

#include <grpcpp/grpcpp.h>

#include "server/rpc/open_streams.h"

namespace sis {

// Counts as a call until its answer has been sent. Owns itself.
class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  explicit UnaryCall(OpenStreams& streams) : call_(streams) {}
  void OnDone() override { delete this; }

 private:
  const OpenStreams::Call call_;
};

}  // namespace sis
