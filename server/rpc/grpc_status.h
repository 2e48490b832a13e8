// Converts absl::Status to grpc::Status.
#pragma once

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"
#include "server/messages/message_text.h"

namespace sis {

// The codes have the same numbers.
inline grpc::Status ToGrpcStatus(const absl::Status& status) {
  const absl::string_view message = status.message();
  return {static_cast<grpc::StatusCode>(status.code()),
          std::string(Beginning({message.data(), message.size()}, kMaxMessageBytes))};
}

}  // namespace sis
