// What all calls of a server share.
#pragma once

#include "kernels/backend.h"
#include "server/metrics.h"
#include "server/run_registry.h"
#include "server/segments/segment_registry.h"
#include "server/store_threads.h"
#include "server/worker_pool.h"

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
