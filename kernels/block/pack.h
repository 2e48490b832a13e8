// Writes record blocks (docs/record_block.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/block/block.h"
#include "kernels/block/record_view.h"

namespace sis {

struct PackOptions {
  BlockEncoding encoding = BlockEncoding::kFixed16;
  int slots = 0;  // K of the records, at most kMaxBlockSlots
  int32_t vocabulary_size = 0;
  uint32_t first_position = 0;
  uint64_t policy_version = 0;
  double mass = 0;  // probability at which sets are cut; 0 or 1: no cut
};

// Returns a block of up to kMaxBlockPositions records. Returns InvalidArgument, naming field,
// position and value, for the first record that ValidateRecords refuses.
absl::StatusOr<std::vector<std::byte>> PackBlock(const RecordView& records,
                                                 const PackOptions& options);

// Writes the block to memory from `allocate`, which gets the block's size in bytes. Also overwrites
// kBlockSlack bytes after it. Returns ResourceExhausted if `allocate` returns null.
absl::Status PackBlock(const RecordView& records, const PackOptions& options,
                       absl::FunctionRef<std::byte*(size_t)> allocate);

// Writes one block of all (at least one) to memory from `allocate`, which gets its size in bytes.
// Returns InvalidArgument if their positions do not follow each other.
absl::Status MergeBlocks(std::span<const BlockView> blocks,
                         absl::FunctionRef<std::byte*(size_t)> allocate);

// Returns a block with positions [first, first + count) of `block`.
std::vector<std::byte> SliceBlock(const BlockView& block, uint32_t first, uint32_t count);

}  // namespace sis
