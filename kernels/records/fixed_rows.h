// Recorded rows that don't change any more, for backends that keep copies of them in memory of
// their own: a device's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace sis {

// A name for bytes that don't change any more. A name is never used again: so a backend need not be
// told when the bytes change or go, since nobody asks for a copy under the old name.
//
// Renew excludes all other calls, as writing the bytes does; the others are thread-safe.
class RowsTag {
 public:
  RowsTag() = default;
  RowsTag(const RowsTag&) = delete;
  RowsTag& operator=(const RowsTag&) = delete;

  // To be called when the bytes have changed.
  void Renew() {
    static std::atomic<uint64_t> names = 0;
    name_ = 1 + names.fetch_add(1, std::memory_order_relaxed);
    last_read_.store(0, std::memory_order_relaxed);
  }
  // 0 if they were never fixed.
  uint64_t name() const { return name_; }

  // Notes of the backend that reads the bytes. If they are wrong it only loses time.
  // Where its copy was last:
  uint64_t location() const { return location_.load(std::memory_order_relaxed); }
  void set_location(uint64_t location) const {
    location_.store(location, std::memory_order_relaxed);
  }
  // When it read the bytes last, by its own clock; 0: never.
  uint64_t last_read() const { return last_read_.load(std::memory_order_relaxed); }
  void set_last_read(uint64_t time) const { last_read_.store(time, std::memory_order_relaxed); }

 private:
  uint64_t name_ = 0;
  mutable std::atomic<uint64_t> location_ = 0;
  mutable std::atomic<uint64_t> last_read_ = 0;
};

// All that a decision reads of a page's records, and their name.
struct FixedRows {
  std::span<const std::byte> bytes = {};
  const RowsTag* tag = nullptr;  // null: the rows may change
};

}  // namespace sis
