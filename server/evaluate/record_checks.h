// Whether a trainer's batch is about the records that the cache holds.
#pragma once

#include "absl/status/status.h"
#include "server/cache/sequence.h"
#include "server/evaluate/evaluate_input.h"
#include "server/slices/slices.h"

namespace sis {

// FailedPrecondition if the slice names a digest that its records don't have.
absl::Status CheckRecordDigest(const SliceRange& slice, const Sequence::Reader& reader);

// FailedPrecondition if the slice names a checksum that the sampled ids at its unmasked positions
// don't have. None of these may be missing; they begin at `offset` in the request.
absl::Status CheckSampledIds(const SliceRange& slice, const Sequence::Reader& reader,
                             const EvaluateInput& input, size_t offset);

}  // namespace sis
