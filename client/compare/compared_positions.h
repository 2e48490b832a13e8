// The positions of two recordings that were sampled in the same context.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "client/recorded/recorded_sets.h"

namespace sis {

struct ComparedPosition {
  size_t sequence;
  uint32_t position;
  const RecordedSet* a;
  const RecordedSet* b;
};

// How many positions of a prompt have the same context: up to and including the first where the
// sampled tokens differ.
size_t CommonPrefix(const RecordedSets& a, const RecordedSets& b);

// Those of all common prefixes, which point into `pair`.
std::vector<ComparedPosition> ComparedPositions(const RecordedPair& pair);

// Whether B lists nothing but tokens that A lists, as a trainer does that looks up a record's: what
// B leaves out is then not improbable, but unknown.
bool AreGathered(std::span<const ComparedPosition> positions);

// Half the sum of |p - q| over the tokens that either set lists; one that a set does not list
// counts as impossible there. In [0, 1], but for rounding.
double TotalVariation(const RecordedSet& a, const RecordedSet& b);

// Log-probs of the tokens that both sets list, in the order of `a`, each less its mean over them:
// what is left does not depend on how either was normalised.
struct CentredLogProbs {
  std::vector<int32_t> ids;
  std::vector<double> a;
  std::vector<double> b;
};
CentredLogProbs Centred(const RecordedSet& a, const RecordedSet& b);

}  // namespace sis
