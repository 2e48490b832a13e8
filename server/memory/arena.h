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

// Hands out blocks of a few sizes. Chunks of 1 MiB are given to one size each while any of their
// blocks is in use. Thread-safe; one short lock per block, none to read or write it.
class Arena {
 public:
  static constexpr size_t kChunkBytes = size_t{1} << 20;
  static constexpr size_t kAlignment = 64;

  // Maps the whole chunks that fit into so many bytes. ResourceExhausted if the system refuses.
  static absl::StatusOr<std::unique_ptr<Arena>> Map(int64_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Touches all of it, so that no page fault and no shortage of the machine comes later.
  void Populate();

  // Memory of the arena, aligned to kAlignment, given back when the block goes. The arena must
  // outlive it. Contents are what was there before.
  class Block {
   public:
    Block() = default;
    Block(Block&& other) noexcept : arena_(other.arena_), bytes_(std::exchange(other.bytes_, {})) {}
    Block& operator=(Block&& other) noexcept {
      std::swap(arena_, other.arena_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Block() {
      if (!empty()) arena_->Free(bytes_.data());
    }

    bool empty() const { return bytes_.empty(); }
    std::span<std::byte> bytes() const { return bytes_; }

   private:
    friend class Arena;
    Block(Arena* arena, std::span<std::byte> bytes) : arena_(arena), bytes_(bytes) {}

    Arena* arena_ = nullptr;
    std::span<std::byte> bytes_;
  };

  // What a block takes: a multiple of kAlignment.
  static constexpr size_t BlockBytes(size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  // A block of exactly so many bytes, in [1, kChunkBytes]; empty if there is no room.
  Block Allocate(size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  // Leaves so many bytes to what the process keeps elsewhere: gives unused chunks back to the
  // system until that is reached, now or as chunks become unused. What was set aside beyond that
  // may be handed out again.
  void SetAside(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  // BlockBytes of all blocks handed out.
  int64_t used_bytes() const { return used_bytes_.load(std::memory_order_relaxed); }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  // Free blocks hold the address of the next one.
  struct Chunk {
    size_t block_bytes = 0;
    size_t touched_bytes = 0;  // handed out at least once: free blocks lie below
    uint32_t used_blocks = 0;
    std::byte* free = nullptr;
    // Neighbours among the chunks of this size that have room.
    uint32_t previous = kNone;
    uint32_t next = kNone;

    bool full() const { return free == nullptr && touched_bytes + block_bytes > kChunkBytes; }
  };

  Arena(std::byte* memory, size_t chunks);

  // Hands unused chunks over until as many are set aside as there should be.
  void FillAside() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Free(std::byte* block) ABSL_LOCKS_EXCLUDED(mutex_);
  void Link(uint32_t chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Unlink(uint32_t chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  std::byte* const memory_;
  std::atomic<int64_t> used_bytes_ = 0;

  Mutex mutex_;
  std::vector<Chunk> chunks_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint32_t> unused_chunks_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint32_t> aside_ ABSL_GUARDED_BY(mutex_);
  size_t wanted_aside_ ABSL_GUARDED_BY(mutex_) = 0;
  // Size of a block -> first chunk with room for one.
  absl::flat_hash_map<size_t, uint32_t> with_room_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sis
