#include "server/threads/worker_pool.h"

#include <utility>

namespace sis {

WorkerPool::WorkerPool(int threads) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

WorkerPool::~WorkerPool() {
  {
    WriterLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::Schedule(const std::string& run_id, std::function<void()> work) {
  if (threads_.empty()) return work();
  {
    WriterLock lock(mutex_);
    const auto [queue, inserted] = waiting_.try_emplace(run_id);
    if (inserted) turns_.push_back(queue);
    queue->second.push_back(std::move(work));
  }
  changed_.notify_one();
}

std::function<void()> WorkerPool::Next() {
  const auto queue = turns_.front();
  turns_.pop_front();
  std::function<void()> work = std::move(queue->second.front());
  queue->second.pop_front();
  if (queue->second.empty()) {
    waiting_.erase(queue);
  } else {
    turns_.push_back(queue);
  }
  return work;
}

void WorkerPool::Run() {
  for (;;) {
    std::function<void()> work;
    {
      WriterLock lock(mutex_);
      while (!stopping_ && turns_.empty()) changed_.wait(mutex_);
      // Work that still runs in another thread may schedule more, which that thread then runs.
      if (turns_.empty()) return;
      work = Next();
    }
    work();
  }
}

}  // namespace sis
