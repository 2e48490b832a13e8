// Where a client is, as gRPC has it.
#pragma once

#include <grpcpp/server_context.h>

#include "absl/strings/match.h"
#include "server/shared_memory/segment_registry.h"

namespace sis {

inline ClientAt WhereIs(const grpc::CallbackServerContext& context) {
  return absl::StartsWith(context.peer(), "unix:") ? ClientAt::kUnixSocket : ClientAt::kElsewhere;
}

}  // namespace sis
