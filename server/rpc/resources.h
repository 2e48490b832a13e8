// What all calls of a server share.
#pragma once

#include "absl/time/time.h"
#include "kernels/decide/backend.h"
#include "server/append/room_queue.h"
#include "server/memory/byte_budget.h"
#include "server/metrics/metrics.h"
#include "server/rpc/open_streams.h"
#include "server/rpc/server_status.h"
#include "server/security/authenticator.h"
#include "server/shared_memory/segment_registry.h"
#include "server/store/stored_runs.h"
#include "server/threads/store_threads.h"
#include "server/threads/worker_pool.h"

namespace sis {

// All that is referred to must outlive the calls.
struct Resources {
  StoredRuns& runs;
  RoomQueue& room_queue;  // of appends
  SegmentRegistry& segments;
  const Backend& backend;
  WorkerPool& workers;  // that evaluate
  StoreThreads& store_threads;
  OpenStreams& streams;
  Metrics& metrics;
  ServerStatus& status;
  const Authenticator& authenticator;
  ByteBudget& parsing;  // for what is made of messages
  // Of calls whose clients set none (server/rpc/call_deadline.h).
  absl::Duration default_deadline = absl::InfiniteDuration();
};

}  // namespace sis
