// Threads for work that is too long for gRPC's own.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "server/mutex.h"

namespace sis {

// First come, first served. Thread-safe. The destructor runs what is scheduled, then joins.
class WorkerPool {
 public:
  explicit WorkerPool(int threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  void Schedule(std::function<void()> work) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run();

  Mutex mutex_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::condition_variable_any changed_;
  std::vector<std::thread> threads_;
};

}  // namespace sis
