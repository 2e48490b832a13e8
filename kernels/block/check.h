// Checks blocks from other programs before they are stored (docs/record_block.md).
#pragma once

#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/block/block.h"

namespace sis {

// Returns a view of the block if it passes every check. Returns InvalidArgument, naming field,
// position, slot and value, if it does not.
absl::StatusOr<BlockView> CheckBlock(std::span<const std::byte> bytes);

// Makes the checks that follow OpenBlock, one position after the other.
absl::Status CheckPositions(const BlockView& block);

// Makes the checks of CheckPositions on vectors. Returns true if all positions are certainly valid.
// May return false for valid blocks with less than 64 bytes after the last log-prob.
bool PositionsAreQuicklySeenValid(const BlockView& block);

}  // namespace sis
