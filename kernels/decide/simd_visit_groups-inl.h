// The groups of both policies' log-probs, whatever their layouts: the two values of a slot stand in
// the same lane.
#if defined(SIS_KERNELS_SIMD_VISIT_GROUPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SIS_KERNELS_SIMD_VISIT_GROUPS_INL_H_
#undef SIS_KERNELS_SIMD_VISIT_GROUPS_INL_H_
#else
#define SIS_KERNELS_SIMD_VISIT_GROUPS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <span>

#include "hwy/highway.h"
#include "kernels/decide/backend.h"
#include "kernels/decide/simd_ragged_slots-inl.h"
#include "kernels/records/simd_groups-inl.h"
#include "kernels/records/simd_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {

// Calls `visit` with the lane of the first position and the groups of both policies' log-probs,
// which must be GATHERED; it is compiled once for each pair of layouts. `next` is where the
// behaviour's rows are that will be visited next; may be null.
template <class Visitor>
void VisitGroups(const BehaviorView& behavior, const CurrentView& current, size_t slots,
                 const std::byte* next, const Visitor& visit) {
  if (const RaggedLogProbs& ragged = behavior.ragged_log_probs; !ragged.empty()) {
    RaggedPositions positions(ragged);
    RaggedCurrent current_groups(current.log_probs, current.counts, slots, ragged);
    return visit(ragged.first_lane, positions, current_groups);
  }
  const auto with_behavior = [&](size_t first_lane, auto behavior_groups) {
    TokenMajorPositions current_groups(current.log_probs, slots);
    visit(first_lane, behavior_groups, current_groups);
  };
  const GroupedLogProbs& grouped = behavior.grouped_log_probs;
  if (grouped.empty()) return with_behavior(0, TokenMajorPositions(behavior.log_probs, slots));
  VisitEncoding(grouped.encoding, [&]<LogProbEncoding kEncoding>() {
    with_behavior(grouped.first_lane, GroupedRows<kEncoding>(grouped, slots, next));
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#endif  // include guard of the target
