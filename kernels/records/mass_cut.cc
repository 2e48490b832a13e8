#include "kernels/records/mass_cut.h"

#include <algorithm>

#include "kernels/numerics/exp32.h"
#include "kernels/numerics/log_prob.h"
#include "kernels/records/record_view.h"

namespace sis {

size_t SlotsToMass(double mass, std::span<const float> log_probs) {
  float covered = 0.0f;
  size_t used = 0;
  while (used < log_probs.size() && covered < mass) {
    const float log_prob = log_probs[used++];
    if (!(log_prob <= kRoundingSlack)) break;  // invalid, NaN perhaps
    covered = covered + Exp32(log_prob);
  }
  return used;
}

void CutToMass(double mass, size_t slots, std::span<int32_t> ids, std::span<float> log_probs,
               std::span<uint16_t> ranks) {
  for (size_t i = 0; i < ranks.size(); ++i) {
    const std::span<float> row = log_probs.subspan(i * slots, slots);
    const size_t used = SlotsToMass(mass, row);
    std::ranges::fill(row.subspan(used), kMinusInfinity);
    std::ranges::fill(ids.subspan(i * slots + used, slots - used), -1);
    if (ranks[i] >= used) ranks[i] = kRankOutside;
  }
}

}  // namespace sis
