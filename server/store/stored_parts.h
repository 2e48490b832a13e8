// Between a sequence in memory and its stored parts. A block is stored as it is in memory
// (docs/record_block.md).
#pragma once

#include <cstdint>
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

// Its positions [index, index + count) alone.
StoredPart BlockPart(const BlockView& block, uint32_t index, uint32_t count);
StoredPart GapPart(const Missing& gap);
StoredPart SealPart(uint32_t length, std::string_view annotation);

// Does to a sequence of a run what the part says. Errors as those of Append, AppendGap and Seal;
// DataLoss if it is no part of such a sequence. bytes_short, if it is ResourceExhausted, is what
// is lacking.
absl::Status ApplyPart(const StoredPart& part, const RunConfig& config, Sequence& sequence,
                       int64_t& bytes_short);

// What of the part isn't among the stored ones, whose positions it shares only where they are
// equal.
std::vector<StoredPart> NewParts(const StoredPart& part, std::span<const StoredPart> stored);

// Blocks in memory that hold a position of `stored`, the first positions of stored blocks, behind
// their own first: they take the places of several. Those of fewer positions than `least` are left
// out.
std::vector<StoredPart> MergedBlocks(const Sequence& sequence, std::span<const uint32_t> stored,
                                     uint32_t least);

}  // namespace sis
