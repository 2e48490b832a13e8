// One function for each fault that a pair of recordings can have. The limits lie far from what
// recordings of real engines give without the fault and with it; docs/compare.md has the numbers.
#pragma once

#include <cstdint>

#include "absl/container/flat_hash_set.h"
#include "client/compare/check.h"
#include "client/compare/compared_positions.h"
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
Check CheckOrder(const Part& part);

// Do their positions correspond?

// One file has some tokens more at its start.
Check CheckTokensShifted(const Part& part);
// The same tokens, but the lists belong to positions further on or back.
Check CheckListsShifted(const Part& part);
// The same, of the sampled tokens' own log-probs.
Check CheckSampledShifted(const Part& part);

// Do their log-probs mean the same?

// A file gives the sampled token a log-prob that its list contradicts.
Check CheckSampledColumn(const Part& part);
// The files agree but for a stretch of positions, which are of another context.
Check CheckStretch(const Part& part);
// One lists what top-p, top-k or min-p left, renormalised.
Check CheckFilter(const Part& part);
// One is the other at another temperature.
Check CheckTemperature(const Part& part);
// One adds a constant to some tokens' logits. These are added to `biased`.
Check CheckBias(const Part& part, absl::flat_hash_set<int32_t>& biased);
// One punishes tokens that the text has already. Those of `biased` tell nothing.
Check CheckPenalty(const Part& part, const absl::flat_hash_set<int32_t>& biased);

// How large are the differences?

// They are larger in some sequences than in most.
Check CheckUneven(const Part& part);
// They are those of a few positions.
Check CheckOutliers(const Part& part);
// They are larger than numerical noise: other weights, or another prompt.
Check CheckWeights(const Part& part);

// What only tokens of a run can tell.

// The recorded tokens leave out too much of what the policies give any weight.
Check CheckCoverage(const Part& part);
// Own log-probs of exactly 0, many in a row, where the current policy is not certain.
Check CheckZeros(const Part& part);
// Tokens are of versions newer than the run's.
Check CheckAhead(const Part& part);
// Tokens of the current version agree, those of versions before do not.
Check CheckStaleness(const Part& part);

}  // namespace sis
