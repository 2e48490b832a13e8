// Which blocks of other programs may be stored (docs/record_block.md).
#pragma once

#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/block/block.h"

namespace sis {

// A view of the block if it passes every check. InvalidArgument names field, position, slot and
// value.
absl::StatusOr<BlockView> CheckBlock(std::span<const std::byte> bytes);

// The checks behind OpenBlock, one position after the other.
absl::Status CheckPositions(const BlockView& block);

// The same on vectors, without a reason. False also for a few positions and on machines without
// vectors.
bool PositionsAreQuicklySeenValid(const BlockView& block);

}  // namespace sis
