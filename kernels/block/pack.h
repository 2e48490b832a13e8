// Writes record blocks (docs/record_block.md).
#pragma once

#include <cstddef>
#include <cstdint>
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
  double mass = 0;  // where sets are cut; 0 or 1: nowhere
};

// The block of up to kMaxBlockPositions records. InvalidArgument names
// field, position and value of the first record that is not valid.
absl::StatusOr<std::vector<std::byte>> PackBlock(const RecordView& records,
                                                 const PackOptions& options);

// Writes the block to the memory that `allocate` returns for the block's size in bytes; kBlockSlack
// bytes behind it are overwritten too. ResourceExhausted if `allocate` returns null.
absl::Status PackBlock(const RecordView& records, const PackOptions& options,
                       absl::FunctionRef<std::byte*(size_t)> allocate);

// The block of both, whose positions must follow each other, or InvalidArgument.
absl::StatusOr<std::vector<std::byte>> MergeBlocks(const BlockView& first, const BlockView& second);

// The block of its positions [first, first + count) alone.
std::vector<std::byte> SliceBlock(const BlockView& block, uint32_t first, uint32_t count);

}  // namespace sis
