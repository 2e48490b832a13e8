#include "server/threads/side_by_side.h"

#include <condition_variable>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "server/threads/mutex.h"

namespace sis {
namespace {

// Shared with workers that start after the call has returned.
class Helpers {
 public:
  // Returns true if the work has not ended. Leave must follow then.
  bool Join() {
    WriterLock lock(mutex_);
    if (over_) return false;
    ++helping_;
    return true;
  }
  void Leave() {
    WriterLock lock(mutex_);
    --helping_;
    changed_.notify_one();
  }
  // Refuses further helpers. Returns when all have left.
  void End() {
    WriterLock lock(mutex_);
    over_ = true;
    while (helping_ > 0) changed_.wait(mutex_);
  }

 private:
  Mutex mutex_;
  std::condition_variable_any changed_;
  size_t helping_ ABSL_GUARDED_BY(mutex_) = 0;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

void SideBySide(WorkerPool& workers, const std::string& run_id, size_t lanes,
                absl::FunctionRef<void(size_t lane)> work) {
  if (lanes <= 1) return work(0);
  const auto helpers = std::make_shared<Helpers>();
  for (size_t lane = 1; lane < lanes; ++lane) {
    workers.Schedule(run_id, [helpers, work, lane] {
      if (!helpers->Join()) return;
      work(lane);
      helpers->Leave();
    });
  }
  work(0);
  helpers->End();
}

}  // namespace sis
