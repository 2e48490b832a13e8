// Objects that all calls of a server share.
#pragma once

#include <grpcpp/server_context.h>

#include <functional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/cache/caller.h"
#include "server/rpc/open_streams.h"
#include "server/rpc/rpc_metrics.h"
#include "server/rpc/server_status.h"
#include "server/store/stored_runs.h"
#include "server/threads/worker_pool.h"

namespace sis {

class Backend;

// Returns the caller, or the error if the caller may not call `method`.
using Authorize = std::function<absl::StatusOr<Caller>(const grpc::CallbackServerContext& context,
                                                       absl::string_view method)>;

// All referenced objects must outlive the calls.
struct Resources {
  StoredRuns& runs;
  const Backend& backend;
  WorkerPool& workers;  // for Evaluate
  // For calls that may wait for a store, because gRPC's own threads must not. Without a store no
  // call waits, and the pool has no threads.
  WorkerPool& store_threads;
  OpenStreams& streams;
  RpcMetrics& metrics;
  ServerStatus& status;
  Authorize authorize;
  // For calls whose clients set none (server/rpc/call_deadline.h).
  absl::Duration default_deadline = absl::InfiniteDuration();
};

}  // namespace sis
