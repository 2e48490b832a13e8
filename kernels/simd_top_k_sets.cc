// Recorded slots lie in lanes; every one is compared with each token of the current set. That is K'
// ceil(k / lanes) comparisons without a branch, and no table to fill and clear.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/simd_targets.h"
#include "kernels/top_k_sets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd_top_k_sets.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/decide.h"
#if HWY_TARGET != HWY_SCALAR
#include "kernels/simd_math-inl.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR

void Reduce(const RecordedSets& recorded, const TopKSets& current, const ReducedSets& into) {
  ReduceTopKSetsScalar(recorded, current, into);
}

#else

// kLanes values from `at` on. What lies behind the array's end may be anything: it is in no lane
// that counts.
template <class D, typename T = hn::TFromD<D> >
HWY_INLINE hn::Vec<D> LoadFrom(D d, std::span<const T> array, size_t at) {
  if (at + kLanes <= array.size()) return hn::LoadU(d, array.data() + at);
  HWY_ALIGN T last[kLanes] = {};
  std::memcpy(last, array.data() + at, (array.size() - at) * sizeof(T));
  return hn::Load(d, last);
}

void Reduce(const RecordedSets& recorded, const TopKSets& current, const ReducedSets& into) {
  const FloatTag d;
  const Int32Tag di;
  const size_t slots = recorded.slots;
  const size_t top_k = recorded.top_k;
  const size_t current_slots = current.slots;
  HWY_ALIGN float probabilities[kMaxTopK + kLanes];
  for (size_t i = 0; i < into.log_envelopes.size(); ++i) {
    const int32_t* current_ids = current.ids.data() + i * current_slots;
    const float* current_log_probs = current.log_probs.data() + i * current_slots;
    const Floats bound = Constant(current_log_probs[current_slots - 1]);
    Floats max_log_ratio = Constant(kMinusInfinity);
    for (size_t slot = 0; slot < top_k; slot += kLanes) {
      const Int32s ids = LoadFrom(di, recorded.ids, i * slots + slot);
      const Floats behavior = LoadFrom(d, recorded.log_probs, i * slots + slot);
      // NaN, which no log-prob is, marks a token that has not been found.
      Floats log_probs = hn::NaN(d);
      for (size_t other = 0; other < current_slots; ++other) {
        const Mask same = hn::RebindMask(d, hn::Eq(ids, hn::Set(di, current_ids[other])));
        log_probs = hn::IfThenElse(same, Constant(current_log_probs[other]), log_probs);
      }
      const Mask used = hn::And(hn::FirstN(d, std::min(top_k - slot, kLanes)),
                                hn::Ne(behavior, Constant(kMinusInfinity)));
      const Mask found = hn::And(used, hn::Eq(log_probs, log_probs));
      hn::Store(hn::IfThenElseZero(found, ExpAtMost88(log_probs)), d, probabilities + slot);
      const Floats log_ratios = hn::Sub(hn::IfThenElse(found, log_probs, bound), behavior);
      max_log_ratio =
          hn::Max(max_log_ratio, hn::IfThenElse(used, log_ratios, Constant(kMinusInfinity)));
    }
    float covered_mass = 0.0f;
    for (size_t slot = 0; slot < top_k; ++slot) covered_mass = covered_mass + probabilities[slot];
    into.log_envelopes[i] = Flush(hn::GetLane(hn::MaxOfLanes(d, max_log_ratio)));
    into.covered_masses[i] = covered_mass;
  }
}

#endif  // HWY_TARGET

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sis {
namespace {

HWY_EXPORT(Reduce);

}  // namespace

void ReduceTopKSetsSimd(const RecordedSets& recorded, const TopKSets& current,
                        const ReducedSets& into) {
  HWY_DYNAMIC_DISPATCH(Reduce)(recorded, current, into);
}

}  // namespace sis
#endif
