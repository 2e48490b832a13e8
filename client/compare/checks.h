// One function for each fault that a pair of recordings can have. The limits lie far from what
// recordings of real engines give without the fault and with it; docs/compare.md has the numbers.
#pragma once

#include <cstdint>
#include <span>

#include "absl/container/flat_hash_set.h"
#include "client/compare/check.h"
#include "client/compare/compared_positions.h"
#include "client/compare/part.h"
#include "client/recorded/recorded_sets.h"

namespace sis {

// Do the files speak of the same tokens?

// An id stands for another text in the other file.
Check CheckTokenTexts(const RecordedPair& pair);
// The same probabilities, position for position, under other ids.
Check CheckTokenNumbers(const RecordedPair& pair);
// The same text, cut into other tokens.
Check CheckSegmentation(const RecordedPair& pair);
// Sequences, or their log-probs alone, stand in the place of others.
Check CheckOrder(std::span<const ComparedSequence> sequences);

// Do their positions correspond?

// One file has some tokens more at its start.
Check CheckTokensShifted(std::span<const ComparedSequence> sequences);
// The same tokens, but the lists belong to positions further on or back.
Check CheckListsShifted(std::span<const ComparedPosition> positions);
// The same, of the sampled tokens' own log-probs.
Check CheckSampledShifted(std::span<const ComparedPosition> positions);

// Do their log-probs mean the same?

// A file gives the sampled token a log-prob that its list contradicts.
Check CheckSampledColumn(const Part& part);
// The files agree but for a stretch of positions, which are of another context.
Check CheckStretch(const Part& part);
// One lists what top-p, top-k or min-p left, renormalised.
Check CheckFilter(std::span<const ComparedPosition> positions);
// One is the other at another temperature.
Check CheckTemperature(std::span<const ComparedPosition> positions);
// One adds a constant to some tokens' logits. These are added to `biased`.
Check CheckBias(std::span<const ComparedPosition> positions, absl::flat_hash_set<int32_t>& biased);
// One punishes tokens that the text has already. Those of `biased` tell nothing.
Check CheckPenalty(std::span<const ComparedPosition> positions,
                   const absl::flat_hash_set<int32_t>& biased);

// How large are the differences?

// They are larger in some sequences than in most.
Check CheckUneven(const Part& part);
// They are those of a few positions.
Check CheckOutliers(std::span<const ComparedPosition> positions);
// They are larger than numerical noise: other weights, or another prompt.
Check CheckWeights(std::span<const ComparedSequence> sequences);

// What only tokens of a run can tell.

// The recorded tokens leave out too much of what the policies give any weight.
Check CheckCoverage(std::span<const ComparedSequence> sequences);
// Tokens of the current version agree, those of versions before do not.
Check CheckStaleness(std::span<const ComparedSequence> sequences);

}  // namespace sis
