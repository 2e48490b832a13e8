#include "server/cache/step_history.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace sis {

DrawStretch& DrawStretch::operator+=(const DrawStretch& later) {
  last_draw = later.last_draw;
  draws += later.draws;
  begun = std::min(begun, later.begun);
  ended = std::max(ended, later.ended);
  sequences += later.sequences;
  sums += later.sums;
  AddEach(later.missing, missing);
  plain += later.plain;
  clipped += later.clipped;
  applied += later.applied;
  uncounted += later.uncounted;
  return *this;
}

void StepHistory::Add(DrawStretch newest) {
  stretches_.push_back(std::move(newest));
  if (stretches_.size() > kMostStretches) Thin();
}

bool StepHistory::Thin() {
  if (stretches_.size() < 2) return false;
  size_t shortest = 0;  // the older one of the two
  double least = std::numeric_limits<double>::infinity();
  int64_t age = kFullDraws;  // of the newer one of the two
  for (size_t older = stretches_.size() - 1; older-- > 0;) {
    const DrawStretch& newer = stretches_[older + 1];
    const double share =
        static_cast<double>(stretches_[older].draws + newer.draws) / static_cast<double>(age);
    if (share < least) {
      least = share;
      shortest = older;
    }
    age += newer.draws;
  }
  stretches_[shortest] += stretches_[shortest + 1];
  stretches_.erase(stretches_.begin() + static_cast<std::ptrdiff_t>(shortest) + 1);
  return true;
}

}  // namespace sis
