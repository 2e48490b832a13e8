// The one place where gRPC's statuses become Abseil's. Their codes are the same numbers.
#pragma once

#include <grpcpp/grpcpp.h>

#include "absl/status/status.h"

namespace sis {

inline absl::Status ToAbslStatus(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace sis
