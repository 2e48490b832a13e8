// Which blocks of other programs may be stored (docs/record_block.md).
#pragma once

#include <cstddef>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/block/block.h"

namespace sis {

// A view of the block if it passes every check. InvalidArgument names field, position, slot and
// value.
absl::StatusOr<BlockView> CheckBlock(std::span<const std::byte> bytes);

}  // namespace sis
