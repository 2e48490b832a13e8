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

// Its bytes never change. They lie behind the object, in one allocation. Thread-safe.
class CachedBlock {
 public:
  // Copies the block, which must have passed CheckBlock.
  static std::unique_ptr<const CachedBlock> Copy(const BlockView& block);
  // The block of both, if their positions follow each other, their headers agree, the limits of a
  // block hold it, and neither is corrupt; else null.
  static std::unique_ptr<const CachedBlock> Merge(const CachedBlock& first,
                                                  const CachedBlock& second);
  CachedBlock(const CachedBlock&) = delete;
  CachedBlock& operator=(const CachedBlock&) = delete;
  static void operator delete(void* memory) { ::operator delete(memory); }

  // What a block of so many bytes is charged, with its place in the sequence's index. A merged
  // block is charged less than both were.
  static int64_t Charge(size_t bytes);

  std::span<const std::byte> bytes() const {
    return {reinterpret_cast<const std::byte*>(this + 1), size_};
  }
  BlockView view() const;
  uint32_t first_position() const { return first_position_; }
  uint32_t positions() const { return positions_; }
  uint32_t end() const { return first_position_ + positions_; }
  uint64_t policy_version() const { return policy_version_; }

  // Positions [index, index + count) of the block, for the backends.
  BlockRange Range(uint32_t index, uint32_t count) const {
    return BlockRange(view(), index, count, &tag_);
  }

  // DataLoss if the bytes no longer have their checksums. The block is corrupt from then on.
  absl::Status Check() const;
  // Nothing of a corrupt block may be read, but for what stands below.
  bool corrupt() const { return corrupt_.load(std::memory_order_relaxed); }

  // The record digest of positions [index, index + count) (kernels/block/digest.h); 0 if corrupt.
  uint64_t Digest(uint32_t index, uint32_t count) const;
  // What Digest would be, had the block not become corrupt. It is known of whole blocks, else 0.
  uint64_t DigestBefore(uint32_t index, uint32_t count) const;

 private:
  CachedBlock(const BlockView& block, uint64_t digest);
  static std::unique_ptr<const CachedBlock> Copy(const BlockView& block, uint64_t digest);

  const uint32_t size_;
  const uint32_t first_position_;
  const uint32_t positions_;
  mutable std::atomic<bool> corrupt_ = false;
  const uint64_t policy_version_;
  const uint64_t digest_;  // of all positions
  const BlockTag tag_;
};

}  // namespace sis
