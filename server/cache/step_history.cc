#include "server/cache/step_history.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/decide/statistics.h"

namespace sis {

LongSums::LongSums(const Sums& sums)
    : accepted(sums.accepted),
      rejected(sums.rejected),
      outside_top_k(sums.outside_top_k),
      missing(sums.missing),
      masked(sums.masked),
      envelope_violations(sums.envelope_violations),
      d(FromFixed(sums.d)),
      d_sis(FromFixed(sums.d_sis)),
      log_envelope(FromFixed(sums.log_envelope)),
      residual_mass(FromFixed(sums.residual_mass)),
      acceptance_probability(FromFixed(sums.acceptance_probability)),
      expected_acceptance(FromFixed(sums.expected_acceptance)),
      k3(FromFixed(sums.k3)),
      total_variation(FromFixed(sums.total_variation)) {}

LongSums& LongSums::operator+=(const LongSums& other) {
  accepted += other.accepted;
  rejected += other.rejected;
  outside_top_k += other.outside_top_k;
  missing += other.missing;
  masked += other.masked;
  envelope_violations += other.envelope_violations;
  d += other.d;
  d_sis += other.d_sis;
  log_envelope += other.log_envelope;
  residual_mass += other.residual_mass;
  acceptance_probability += other.acceptance_probability;
  expected_acceptance += other.expected_acceptance;
  k3 += other.k3;
  total_variation += other.total_variation;
  return *this;
}

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
