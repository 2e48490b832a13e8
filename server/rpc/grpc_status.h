// Converts absl::Status to grpc::Status.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"
#include "server/messages/message_text.h"

namespace sis {

// The end of streams of a server that stops.
inline absl::Status ShutsDown() { return absl::UnavailableError("the server shuts down"); }

// The codes have the same numbers. An Unavailable that the server itself found, of its store, has
// the trailing metadata "sis-answered": clients need not look for another server.
inline grpc::Status ToGrpcStatus(const absl::Status& status, grpc::ServerContextBase& context) {
  if (absl::IsUnavailable(status) && status != ShutsDown()) {
    context.AddTrailingMetadata("sis-answered", "1");
  }
  const absl::string_view message = status.message();
  return {static_cast<grpc::StatusCode>(status.code()),
          std::string(Beginning({message.data(), message.size()}, kMaxMessageBytes))};
}

}  // namespace sis
