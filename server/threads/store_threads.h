// Threads for calls that may wait for a store.
#pragma once

#include <functional>
#include <optional>
#include <utility>

#include "server/threads/worker_pool.h"

namespace sis {

// gRPC's own threads must not wait. Without a durable store no call waits, so work runs in the
// calling thread.
class StoreThreads {
 public:
  explicit StoreThreads(int threads) {
    if (threads > 0) workers_.emplace(threads);
  }

  void Run(std::function<void()> call) {
    if (workers_.has_value()) {
      workers_->Schedule("", std::move(call));
    } else {
      call();
    }
  }

 private:
  std::optional<WorkerPool> workers_;
};

}  // namespace sis
