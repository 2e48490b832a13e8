// gRPC runs the reactions of a stream one after the other, on any thread. ThreadSanitizer can't see
// what orders them, as gRPC is not instrumented: here the order is said in a way that it
// understands.
#pragma once

#include <atomic>

namespace sis {

class ReactionOrder {
 public:
  // First thing in a reaction.
  void Begin() const { reactions_.load(std::memory_order_acquire); }
  // Before the next operation is started: the object may change hands, or be gone, from then on.
  void HandOn() { reactions_.fetch_add(1, std::memory_order_release); }

 private:
  std::atomic<int> reactions_ = 0;
};

}  // namespace sis
