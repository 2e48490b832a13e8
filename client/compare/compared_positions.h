// The positions of two recordings that were sampled in the same context.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "client/compare/decisions.h"
#include "client/recorded/recorded_sets.h"

namespace sis {

struct ComparedPosition {
  size_t sequence;
  uint32_t position;
  const RecordedSet* a;
  const RecordedSet* b;
  const DecidedPosition* decided;  // with A as the behaviour policy
  double total_variation;          // of the lists, as TotalVariation has it

  bool has_lists() const { return !a->top.empty() && !b->top.empty(); }
  bool has_ratio() const { return decided->decision != Decision::kMissing; }
  // abs(log w), nats, limited as in the service's sums (docs/numerics.md): where the current policy
  // finds the token impossible, it is infinite. Must have a ratio.
  double deviation() const;
};

struct ComparedSequence {
  size_t index;
  const RecordedSets* a;
  const RecordedSets* b;
};

// Some of the sequences of two recordings, which checks are asked about, in their order. Points
// into what it was made of.
struct Part {
  std::vector<ComparedSequence> sequences;
  std::vector<ComparedPosition> positions;

  std::span<const ComparedPosition> Of(size_t index) const;
  // The sequences of `indices`, which ascend, alone.
  Part Only(std::span<const size_t> indices) const;
};

// All of them. `decisions` are of the positions in common, with A as the behaviour policy.
Part WholeOf(const RecordedPair& pair, const Decisions& decisions);

// How many tokens of A, from the first on, B has `shift` positions later.
size_t EqualTokens(const RecordedSets& a, const RecordedSets& b, int shift = 0);

// Whether B lists nothing but tokens that A lists, as a trainer does that looks up a record's: what
// B leaves out is then not improbable, but unknown.
bool AreGathered(std::span<const ComparedPosition> positions);

// Of the tokens that it lists, in [0, 1] but for rounding.
double MassOf(const RecordedSet& set);

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
