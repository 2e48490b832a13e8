#include "client/compare/part.h"

#include <algorithm>

namespace sis {

Part Part::Only(std::span<const size_t> indices) const {
  Part part;
  for (const size_t index : indices) {
    // Both are in the order of the sequences.
    const auto sequence = std::lower_bound(
        sequences.begin(), sequences.end(), index,
        [](const ComparedSequence& left, size_t right) { return left.index < right; });
    part.sequences.push_back(*sequence);
    auto position = std::lower_bound(
        positions.begin(), positions.end(), index,
        [](const ComparedPosition& left, size_t right) { return left.sequence < right; });
    while (position != positions.end() && position->sequence == index) {
      part.positions.push_back(*position++);
    }
  }
  return part;
}

Part WholeOf(const RecordedPair& pair, const std::vector<ComparedPosition>& positions,
             const Decisions& decisions) {
  Part whole{.sequences = {}, .positions = positions};
  for (size_t i = 0; i < pair.a.sequences.size(); ++i) {
    whole.sequences.push_back(
        {i, &pair.a.sequences[i], &pair.b.sequences[i], &decisions.sequences[i]});
  }
  return whole;
}

}  // namespace sis
