// Converts between a sequence in memory and its stored parts. A block has the same bytes in both
// (docs/record_block.md).
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "kernels/block/block.h"
#include "server/cache/run_config.h"
#include "server/cache/sequence.h"
#include "server/store/store.h"

namespace sis {

// Returns a block with positions [index, index + count) of `block`.
StoredPart BlockPart(const BlockView& block, uint32_t index, uint32_t count);
StoredPart GapPart(const Missing& gap);
StoredPart SealPart(uint32_t length, std::string_view annotation);

// Applies a part to a sequence of a run. Returns the errors of Append, AppendGap and Seal, or
// DataLoss for a part that doesn't fit such a sequence. With ResourceExhausted, sets `bytes_short`
// to the missing bytes.
absl::Status ApplyPart(const StoredPart& part, const RunConfig& config, Sequence& sequence,
                       int64_t& bytes_short);

// Returns the positions of `part` that are not in `stored`. Positions in both must be equal.
std::vector<StoredPart> NewParts(const StoredPart& part, std::span<const StoredPart> stored);

// Returns the blocks in memory that replace several stored blocks, without blocks of fewer than
// `least` positions. `stored` has the first positions of the stored blocks as keys.
std::vector<StoredPart> MergedBlocks(const Sequence& sequence,
                                     const std::map<uint32_t, uint32_t>& stored, uint32_t least);

}  // namespace sis
