// Tracks which blocks have a copy in the device's memory, and where. Bookkeeping only: it neither
// copies nor reads bytes (docs/decisions.md, 13).
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "kernels/decide/backend.h"

namespace sis::cuda {

// The device's memory for copies, allocated at start.
class ResidentMemory {
 public:
  virtual ~ResidentMemory() = default;

  // Only the device may access it. Aligned like blocks.
  virtual std::byte* data() = 0;
  virtual size_t size() const = 0;

  // Called before bytes are reused: a batch will write them before one reads them.
  virtual void Discard(size_t /*offset*/, size_t /*bytes*/) {}
};

// Copies of any size are appended to a slab until the next one does not fit, then to another slab.
// The least recently read slab is reused as a whole, because blocks that are copied one after the
// other are usually read in that order too. Only the end of a slab is wasted: less than one copy,
// so at most a sixth of a slab, and one percent with blocks of a few dozen KiB.
//
// Thread-safe. Takes one short lock per range of a batch, and none while bytes are copied or
// read.
class ResidentBlocks {
 public:
  // Six copies of the largest blocks.
  static constexpr size_t kSlabBytes = size_t{4} << 20;
  // Alignment of copies, in bytes: a line of the device's cache.
  static constexpr size_t kAlignment = 128;

  // Returns the bytes that a copy occupies.
  static constexpr size_t CopyBytes(size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  // Uses all complete slabs of the memory, which must outlive the object.
  explicit ResidentBlocks(ResidentMemory& memory, size_t slab_bytes = kSlabBytes);
  ResidentBlocks(const ResidentBlocks&) = delete;
  ResidentBlocks& operator=(const ResidentBlocks&) = delete;

  ResidentBlocksStats stats() const;

  class Use;

 private:
  struct Copy {
    uint64_t name;   // of the block
    uint64_t maker;  // the batch that writes it; 0: written, and readable by all
    size_t offset;   // in the slab
  };
  struct Slab {
    std::vector<Copy> copies;
    size_t end = 0;  // of the last copy
    int pins = 0;    // number of batches in flight that read or write it
    uint64_t last_read = 0;
    std::list<uint32_t>::iterator by_age;
  };
  struct Location {
    uint32_t slab;
    uint32_t copy;
  };

  Copy& At(const Location& location) { return slabs_[location.slab].copies[location.copy]; }
  size_t OffsetOf(const Location& location) {
    return location.slab * slab_bytes_ + At(location).offset;
  }
  // The functions below require mutex_.
  std::optional<Location> FindLocation(const BlockTag& tag) const;
  // Returns space for a copy of `bytes` bytes, which `maker` writes. The block must have no copy.
  std::optional<Location> MakeSpace(size_t bytes, const BlockTag& tag, uint64_t maker);
  // Returns an unused slab, or one whose copies this block may replace.
  std::optional<uint32_t> TakeSlab(const BlockTag& tag);

  ResidentMemory& memory_;
  const size_t slab_bytes_;

  mutable std::mutex mutex_;
  // All below is guarded by mutex_.
  uint64_t clock_ = 0;    // counts lookups
  uint64_t batches_ = 0;  // numbers them
  std::vector<Slab> slabs_;
  std::vector<uint32_t> unused_;
  std::list<uint32_t> by_age_;       // slabs in use, least recently read first
  std::optional<uint32_t> filling_;  // the slab that copies are appended to
  ResidentBlocksStats stats_;
};

// The copies that a batch reads or makes. Used for one batch after the other. Not thread-safe.
//
// Call Done after the device has finished. Until then only the batch that makes a copy can find it,
// because another batch could read it before the first one's stream has written it. Memory that a
// batch reads stays in place until Done.
class ResidentBlocks::Use {
 public:
  // `blocks` may be null: nothing is kept then.
  explicit Use(ResidentBlocks* blocks) : resident_(blocks) {}
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

  // Returns the offset of a copy of `block` in the memory, if there is one or this batch can make
  // one. A tag must always name the same block. Blocks without a tag get no copy.
  std::optional<size_t> Find(std::span<const std::byte> block, const BlockTag* tag);

  // A copy to make before the batch runs.
  struct Upload {
    std::span<const std::byte> from;
    size_t to;
  };
  std::span<const Upload> uploads() const { return uploads_; }

  // Must be called after the batch has finished without an error.
  void Done();
  // Must be called if the batch failed, because the device may still be running. Its copies are
  // never found again, and their memory is never reused.
  void Abandon();

 private:
  ResidentBlocks* const resident_;
  uint64_t batch_ = 0;  // 0: no lookup yet
  std::vector<Upload> uploads_;
  std::vector<Location> made_;    // one for each upload
  std::vector<uint32_t> pinned_;  // slabs, once per pin
  uint64_t passed_ = 0;           // the block of the last lookup without a copy
};

}  // namespace sis::cuda
