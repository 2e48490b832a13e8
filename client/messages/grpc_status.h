// The one place where gRPC's statuses become Abseil's. Their codes are the same numbers.
#pragma once

#include <grpcpp/grpcpp.h>

#include "absl/status/status.h"

namespace sis {

inline absl::Status ToAbslStatus(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

// Whether the server gave no answer, for whatever reason. One that shuts down cancels calls.
inline bool IsUnreachable(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsCancelled(status);
}

}  // namespace sis
