// Recorded rows that don't change any more, for backends that keep copies of them in memory of
// their own: a device's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace sis {

// Names the bytes of whoever holds it, once they are fixed. A name is never used again, neither for
// other bytes nor after its holder is gone: so a backend need not be told when they change or go,
// since nobody asks for a copy under the old name any more.
//
// Renew excludes all other calls, as writing the bytes does; the others may be made side by side.
class RowsTag {
 public:
  RowsTag() = default;
  RowsTag(const RowsTag&) = delete;
  RowsTag& operator=(const RowsTag&) = delete;

  // The bytes are others from now on.
  void Renew() {
    static std::atomic<uint64_t> names = 0;
    name_ = 1 + names.fetch_add(1, std::memory_order_relaxed);
    last_read_.store(0, std::memory_order_relaxed);
  }
  // 0 if they were never fixed.
  uint64_t name() const { return name_; }

  // Notes of the one backend that reads the bytes; wrong ones (another's) cost it time, no more.
  // Where its copy was last:
  uint64_t place() const { return place_.load(std::memory_order_relaxed); }
  void set_place(uint64_t place) const { place_.store(place, std::memory_order_relaxed); }
  // When it read the bytes last, by its own clock; 0: never.
  uint64_t last_read() const { return last_read_.load(std::memory_order_relaxed); }
  void set_last_read(uint64_t time) const { last_read_.store(time, std::memory_order_relaxed); }

 private:
  uint64_t name_ = 0;
  mutable std::atomic<uint64_t> place_ = 0;
  mutable std::atomic<uint64_t> last_read_ = 0;
};

// All that a decision reads of a page's records, and their name.
struct FixedRows {
  std::span<const std::byte> bytes = {};
  const RowsTag* tag = nullptr;  // null: the rows may change
};

}  // namespace sis
