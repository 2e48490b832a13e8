// What all calls of a server share.
#pragma once

#include "kernels/decide/backend.h"
#include "server/cache/run_registry.h"
#include "server/metrics/metrics.h"
#include "server/shared_memory/segment_registry.h"
#include "server/threads/store_threads.h"
#include "server/threads/worker_pool.h"

namespace sis {

// All must outlive the calls.
struct Resources {
  RunRegistry& registry;
  SegmentRegistry& segments;
  const Backend& backend;
  WorkerPool& workers;  // that evaluate
  StoreThreads& store_threads;
  Metrics& metrics;
};

}  // namespace sis
