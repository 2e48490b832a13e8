// One region of memory that holds all recorded pages, mapped and touched before the server is
// ready.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "server/threads/mutex.h"

namespace sis {

// Hands out cells of a few sizes. Slabs of 1 MiB are given to one size each while any of their
// cells is in use. Thread-safe; one short lock per cell, none to read or write it.
class Arena {
 public:
  static constexpr size_t kSlabBytes = size_t{1} << 20;
  static constexpr size_t kAlignment = 64;

  // Maps the whole slabs that fit into so many bytes. ResourceExhausted if the system refuses.
  static absl::StatusOr<std::unique_ptr<Arena>> Map(int64_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Touches all of it, so that no page fault and no shortage of the machine comes later.
  void Populate();

  // Memory of the arena, aligned to kAlignment, given back when the cell goes. The arena must
  // outlive it. Contents are what was there before.
  class Allocation {
   public:
    Allocation() = default;
    Allocation(Allocation&& other) noexcept
        : arena_(other.arena_), bytes_(std::exchange(other.bytes_, {})) {}
    Allocation& operator=(Allocation&& other) noexcept {
      std::swap(arena_, other.arena_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Allocation() {
      if (!empty()) arena_->Free(bytes_.data());
    }

    bool empty() const { return bytes_.empty(); }
    std::span<std::byte> bytes() const { return bytes_; }

   private:
    friend class Arena;
    Allocation(Arena* arena, std::span<std::byte> bytes) : arena_(arena), bytes_(bytes) {}

    Arena* arena_ = nullptr;
    std::span<std::byte> bytes_;
  };

  // What a cell takes: a multiple of kAlignment.
  static constexpr size_t CellBytes(size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  // A cell of exactly so many bytes, in [1, kSlabBytes]; empty if there is no room.
  Allocation Allocate(size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  // Leaves so many bytes to what the process keeps elsewhere: gives unused slabs back to the
  // system until that is reached, now or as slabs become unused. What was set aside beyond that
  // may be handed out again.
  void SetAside(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  // CellBytes of all cells handed out.
  int64_t used_bytes() const { return used_bytes_.load(std::memory_order_relaxed); }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  // Free cells hold the address of the next one.
  struct Slab {
    size_t cell_bytes = 0;
    size_t touched_bytes = 0;  // handed out at least once: free cells lie below
    uint32_t used_cells = 0;
    std::byte* free = nullptr;
    // Neighbours among the slabs of this size that have room.
    uint32_t previous = kNone;
    uint32_t next = kNone;

    bool full() const { return free == nullptr && touched_bytes + cell_bytes > kSlabBytes; }
  };

  Arena(std::byte* memory, size_t slabs);

  // Hands unused slabs over until as many are set aside as there should be.
  void FillAside() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Free(std::byte* cell) ABSL_LOCKS_EXCLUDED(mutex_);
  void Link(uint32_t slab) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Unlink(uint32_t slab) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  std::byte* const memory_;
  std::atomic<int64_t> used_bytes_ = 0;

  Mutex mutex_;
  std::vector<Slab> slabs_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint32_t> unused_slabs_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint32_t> aside_ ABSL_GUARDED_BY(mutex_);
  size_t wanted_aside_ ABSL_GUARDED_BY(mutex_) = 0;
  // Size of a cell -> first slab with room for one.
  absl::flat_hash_map<size_t, uint32_t> with_room_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sis
