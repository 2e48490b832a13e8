#include "client/compare/profile.h"

#include <bit>

namespace sis {

void DifferenceSums::Add(const ComparedPosition& at) {
  ++positions;
  if (at.has_ratio()) d.Add(at.deviation());
  if (at.has_lists()) lists.Add(at.total_variation);
}

DifferenceSums DifferencesOf(std::span<const ComparedPosition> positions) {
  DifferenceSums all;
  for (const ComparedPosition& at : positions) all.Add(at);
  return all;
}

Profile ProfileOf(const Part& part) {
  constexpr uint64_t kFirstStretch = 4;
  Profile profile;
  for (const ComparedSequence& sequence : part.sequences) {
    profile.sequences.push_back(
        {sequence.index, sequence.index, DifferencesOf(part.Of(sequence.index))});
  }
  for (const ComparedPosition& at : part.positions) {
    // [0, 4), [4, 8), [8, 16), [16, 32), ...
    const auto stretch = static_cast<size_t>(std::bit_width(at.position / kFirstStretch));
    while (stretch >= profile.positions.size()) {
      const uint64_t end = kFirstStretch << profile.positions.size();
      profile.positions.push_back({profile.positions.empty() ? 0 : end / 2, end - 1, {}});
    }
    profile.positions[stretch].differences.Add(at);
  }
  return profile;
}

}  // namespace sis
