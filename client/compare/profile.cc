#include "client/compare/profile.h"

#include <bit>

#include "client/compare/log_ratios.h"

namespace sis {
namespace {

struct Differences {
  size_t positions = 0, ratios = 0, lists = 0;
  double d = 0, variation = 0;

  void Add(const ComparedPosition& at, const DecidedPosition& decided) {
    ++positions;
    if (decided.decision != Decision::kMissing) {
      ++ratios;
      d += Deviation(decided);
    }
    if (!at.a->top.empty() && !at.b->top.empty()) {
      ++lists;
      variation += TotalVariation(*at.a, *at.b);
    }
  }
  // NaN for a mean over nothing.
  Profile::Row In(uint64_t first, uint64_t last) const {
    return {first, last, positions, d / static_cast<double>(ratios),
            variation / static_cast<double>(lists)};
  }
};

// Stretches are [0, 4), [4, 8), [8, 16), [16, 32), ...
constexpr uint32_t kFirstStretch = 4;

size_t StretchOf(uint32_t position) { return std::bit_width(position / kFirstStretch); }

}  // namespace

Profile ProfileOf(const Part& part) {
  Profile profile;
  std::vector<Differences> stretches;
  auto at = part.positions.begin();
  for (const ComparedSequence& sequence : part.sequences) {
    Differences sums;
    for (const DecidedPosition& decided : *sequence.decided) {
      const size_t stretch = StretchOf(at->position);
      if (stretch >= stretches.size()) stretches.resize(stretch + 1);
      sums.Add(*at, decided);
      stretches[stretch].Add(*at, decided);
      ++at;
    }
    profile.sequences.push_back(sums.In(sequence.index, sequence.index));
  }
  for (size_t i = 0; i < stretches.size(); ++i) {
    const uint64_t begin = i == 0 ? 0 : uint64_t{kFirstStretch} << (i - 1);
    const uint64_t end = uint64_t{kFirstStretch} << i;
    profile.positions.push_back(stretches[i].In(begin, end - 1));
  }
  return profile;
}

}  // namespace sis
