// Counts bytes against a limit that is never exceeded.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace sis {

// Thread-safe. A budget may have a parent: a run's quota has the server's budget. Every charge is
// charged to the parent too, and the destructor refunds the rest to it. The parent must outlive the
// budget.
class ByteBudget {
 public:
  // `used` bytes are charged from the beginning, and must have been charged to the parent.
  explicit ByteBudget(int64_t limit, ByteBudget* parent = nullptr, int64_t used = 0)
      : used_(used), limit_(limit), parent_(parent) {}
  ~ByteBudget() {
    if (parent_ != nullptr) parent_->Refund(used());
  }
  ByteBudget(const ByteBudget&) = delete;
  ByteBudget& operator=(const ByteBudget&) = delete;

  // Charges all bytes and returns true, or none and returns false.
  [[nodiscard]] bool TryCharge(int64_t bytes) {
    int64_t used = used_.load(std::memory_order_relaxed);
    do {
      if (bytes > limit_ - used) return false;
    } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
    if (parent_ != nullptr && !parent_->TryCharge(bytes)) {
      used_.fetch_sub(bytes, std::memory_order_relaxed);
      return false;
    }
    return true;
  }

  void Refund(int64_t bytes) {
    used_.fetch_sub(bytes, std::memory_order_relaxed);
    if (parent_ != nullptr) parent_->Refund(bytes);
  }

  // Returns how many bytes must be refunded before `bytes` fit in this budget. Ignores the parent.
  int64_t Lacking(int64_t bytes) const { return std::max<int64_t>(0, bytes - (limit_ - used())); }

  // Returns the larger of the used shares of this budget and of its parent.
  double fullness() const {
    const double own = static_cast<double>(used()) / static_cast<double>(limit_);
    return parent_ == nullptr ? own : std::max(own, parent_->fullness());
  }
  int64_t used() const { return used_.load(std::memory_order_relaxed); }
  int64_t limit() const { return limit_; }

 private:
  std::atomic<int64_t> used_;
  const int64_t limit_;
  ByteBudget* const parent_;
};

}  // namespace sis
