// Where calls go that may wait for a store.
#pragma once

#include <functional>
#include <optional>
#include <utility>

#include "server/threads/worker_pool.h"

namespace sis {

// gRPC's own threads must not wait; without a durable store nothing does, and all runs where it is.
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
