// What a FetchTopK says of a slice before its rows, and reading of rows that agrees with it
// whatever is recorded meanwhile.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "server/cache/missing.h"
#include "server/cache/sequence.h"
#include "server/messages/slices.h"

namespace sis {

struct SliceSummary {
  uint64_t digest = 0;
  std::vector<Missing> missing;  // by position
};

// All of it at one moment. Versions below `oldest_fresh_version` are stale.
SliceSummary Summarize(const SliceRange& slice, uint64_t oldest_fresh_version);

// As Sequence::Reader::ForEachPiece, but without a block where the slice's summary has no record.
void ForEachPiece(const Sequence::Reader& reader, const SliceSummary& summary,
                  uint32_t first_position, uint32_t count,
                  absl::FunctionRef<void(const Sequence::Reader::Piece&)> visit);

}  // namespace sis
