// Shows ThreadSanitizer the order of a stream's reactions. gRPC runs them one after the other, on
// any thread, but is not instrumented.
#pragma once

#include <atomic>

namespace sis {

class ReactionOrder {
 public:
  // Must be called first in a reaction.
  void Begin() const { reactions_.load(std::memory_order_acquire); }
  // Must be called before the next operation is started. From then on another thread may use or
  // delete the object.
  void HandOn() { reactions_.fetch_add(1, std::memory_order_release); }

 private:
  std::atomic<int> reactions_ = 0;
};

}  // namespace sis
