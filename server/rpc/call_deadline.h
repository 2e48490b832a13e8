// The deadline of calls whose client has set none.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/threads/steady_now.h"

namespace sis {

// gRPC itself cancels calls with a deadline of the client.
class CallDeadline {
 public:
  // If the client has set no deadline, the call may take `otherwise` from now on.
  CallDeadline(const grpc::CallbackServerContext& context, absl::Duration otherwise)
      : otherwise_(otherwise) {
    const bool has_own = context.deadline() != std::chrono::system_clock::time_point::max();
    if (!has_own) latest_ = SteadyNow() + otherwise;
  }

  // Returns OK, or DeadlineExceeded after the deadline.
  absl::Status Check() const {
    if (SteadyNow() < latest_) return absl::OkStatus();
    return absl::DeadlineExceededError(absl::StrCat("not done within ",
                                                    absl::FormatDuration(otherwise_),
                                                    ", the deadline of calls that have none"));
  }

 private:
  absl::Duration otherwise_;
  absl::Time latest_ = absl::InfiniteFuture();
};

}  // namespace sis
