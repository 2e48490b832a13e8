// The one place where gRPC's statuses become Abseil's. Their codes are the same numbers.
#pragma once

#include <grpcpp/grpcpp.h>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace sis {

inline absl::Status ToAbslStatus(const grpc::Status& status) {
  // gRPC's words, which don't tell whose maximum it is.
  if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED &&
      absl::StrContains(status.error_message(), "larger than max")) {
    return absl::ResourceExhaustedError(
        absl::StrCat(status.error_message(), ": see the server's --max_message_bytes"));
  }
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

// Whether the server gave no answer, for whatever reason. One that shuts down cancels calls.
inline bool IsUnreachable(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsCancelled(status);
}

}  // namespace sis
