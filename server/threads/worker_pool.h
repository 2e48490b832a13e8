// Threads for work that is too long for gRPC's own.
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

// Runs take turns: while several have work waiting, one piece of each is started before a second of
// any. The work of one run is started first come, first served. So a run waits for at most one
// piece of every other run, however much those have scheduled. Thread-safe. The destructor runs
// what is scheduled, then joins; what waits for idleness it drops.
class WorkerPool {
 public:
  explicit WorkerPool(int threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  size_t threads() const { return threads_.size(); }

  // Work that takes long should do a piece and schedule the rest: other runs then have their turn.
  void Schedule(const std::string& run_id, std::function<void()> work) ABSL_LOCKS_EXCLUDED(mutex_);
  // Runs when no other work waits.
  void ScheduleWhenIdle(std::function<void()> work) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Queue = std::deque<std::function<void()>>;

  void Run();
  std::function<void()> Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  // By run id; none empty.
  std::map<std::string, Queue> waiting_ ABSL_GUARDED_BY(mutex_);
  // The runs with work waiting, the next one first.
  std::deque<std::map<std::string, Queue>::iterator> turns_ ABSL_GUARDED_BY(mutex_);
  Queue when_idle_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::condition_variable_any changed_;
  std::vector<std::thread> threads_;
};

}  // namespace sis
