// One function for each fault that a pair of recordings can have. The limits lie far from what
// recordings of real engines give without the fault and with it; docs/compare.md has the numbers.
#pragma once

#include <span>

#include "client/cli/compare/check.h"
#include "client/cli/compare/compared_positions.h"
#include "client/cli/recorded/recorded_sets.h"

namespace sis {

// Do the files speak of the same tokens?

// An id stands for another text in the other file.
Check CheckTokenTexts(const RecordedPair& pair);
// The same probabilities, position for position, under other ids.
Check CheckTokenNumbers(const RecordedPair& pair);
// The same text, cut into other tokens.
Check CheckSegmentation(const RecordedPair& pair);

// Do their positions correspond?

// One file has some tokens more at its start.
Check CheckTokensShifted(const RecordedPair& pair);
// The same tokens, but the lists belong to positions further on or back.
Check CheckListsShifted(std::span<const ComparedPosition> positions);
// The same, of the sampled tokens' own log-probs.
Check CheckSampledShifted(std::span<const ComparedPosition> positions);

// Do their log-probs mean the same?

// A file gives the sampled token a log-prob that its list contradicts.
Check CheckSampledColumn(const RecordedPair& pair);
// One lists what top-p, top-k or min-p left, renormalised.
Check CheckFilter(std::span<const ComparedPosition> positions);
// One is the other at another temperature.
Check CheckTemperature(std::span<const ComparedPosition> positions);
// One punishes tokens that the text has already.
Check CheckPenalty(const RecordedPair& pair, std::span<const ComparedPosition> positions);

}  // namespace sis
