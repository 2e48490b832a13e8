// Some of the sequences of two recordings, which checks are asked about.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "client/compare/compared_positions.h"
#include "client/compare/decisions.h"
#include "client/recorded/recorded_sets.h"

namespace sis {

struct ComparedSequence {
  size_t index;
  const RecordedSets* a;
  const RecordedSets* b;
  // Of the common prefix, A as the behaviour policy.
  const std::vector<DecidedPosition>* decided;
};

// Points into what it was made of.
struct Part {
  std::vector<ComparedSequence> sequences;
  std::vector<ComparedPosition> positions;

  // Those of `indices`, which ascend, alone.
  Part Only(std::span<const size_t> indices) const;
};

Part WholeOf(const RecordedPair& pair, const std::vector<ComparedPosition>& positions,
             const Decisions& decisions);

}  // namespace sis
