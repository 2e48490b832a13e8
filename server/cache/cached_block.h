// A record block in the server's memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>

#include "absl/status/status.h"
#include "kernels/block/block.h"

namespace sis {

// An immutable block. Its bytes follow the object in the same allocation. Thread-safe.
class CachedBlock {
 public:
  // Copies the block, which must have passed CheckBlock.
  static std::unique_ptr<const CachedBlock> Copy(const BlockView& block);
  // A block with the positions of the first `count` of some blocks; null if no two can merge.
  struct Merged {
    std::unique_ptr<const CachedBlock> block;
    size_t count;
  };
  // Merges as many of the blocks as possible, from the first: up to one that does not continue the
  // block before it, is corrupt, or exceeds the limits of a block.
  static Merged Merge(std::span<const CachedBlock* const> blocks);
  CachedBlock(const CachedBlock&) = delete;
  CachedBlock& operator=(const CachedBlock&) = delete;
  static void operator delete(void* memory) { ::operator delete(memory); }

  // Returns the bytes charged for a block of `bytes`, with its entry in the sequence's index. A
  // merged block is charged less than its two parts.
  static int64_t Charge(size_t bytes);

  std::span<const std::byte> bytes() const {
    return {reinterpret_cast<const std::byte*>(this + 1), size_};
  }
  BlockView view() const;
  uint32_t first_position() const { return first_position_; }
  uint32_t positions() const { return positions_; }
  uint32_t end() const { return first_position_ + positions_; }
  uint64_t policy_version() const { return policy_version_; }
  // Returns true if the positions follow those of `before`, with the same version and encoding.
  bool Continues(const CachedBlock& before) const;

  // Returns positions [index, index + count) of the block, for a backend.
  BlockRange Range(uint32_t index, uint32_t count) const {
    return BlockRange(view(), index, count, &tag_);
  }

  // Returns DataLoss, and marks the block as corrupt, if the bytes don't match their checksums.
  absl::Status Check() const;
  // If true, only the digests below may be read.
  bool corrupt() const { return corrupt_.load(std::memory_order_relaxed); }

  // Returns the record digest of positions [index, index + count) (kernels/block/digest.h), or 0 if
  // the block is corrupt.
  uint64_t Digest(uint32_t index, uint32_t count) const;
  // Returns the digest that the positions had before the block became corrupt. It is known for the
  // whole block only; otherwise returns 0.
  uint64_t DigestBefore(uint32_t index, uint32_t count) const;

 private:
  CachedBlock(const BlockHeader& header, size_t size, uint64_t digest);

  const uint32_t size_;
  const uint32_t first_position_;
  const uint32_t positions_;
  mutable std::atomic<bool> corrupt_ = false;
  const uint64_t policy_version_;
  const uint64_t digest_;  // of all positions
  const BlockTag tag_;
};

}  // namespace sis
