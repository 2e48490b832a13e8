// A thread pool for work that is too long for gRPC's own threads.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "server/threads/mutex.h"

namespace sis {

// Runs take turns: while several runs have scheduled work, the pool starts one work unit of each
// before a second one of any. Units of one run are started in the order of scheduling. So a run
// waits for at most one unit of every other run. Thread-safe. The destructor runs all scheduled
// work, and joins the threads.
class WorkerPool {
 public:
  // Without threads, work runs in the thread that schedules it.
  explicit WorkerPool(int threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  size_t threads() const { return threads_.size(); }

  // Long work should do one unit and schedule the rest, so that other runs get their turn.
  void Schedule(const std::string& run_id, std::function<void()> work) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Queue = std::deque<std::function<void()>>;

  void Run();
  std::function<void()> Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  // By run id; no queue is empty.
  std::map<std::string, Queue> waiting_ ABSL_GUARDED_BY(mutex_);
  // The runs with scheduled work, the next one first.
  std::deque<std::map<std::string, Queue>::iterator> turns_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::condition_variable_any changed_;
  std::vector<std::thread> threads_;
};

}  // namespace sis
