// Recorded tokens found in the current policy's sets by comparing all with all, a position a lane:
// for small sets.
#if defined(SIS_KERNELS_SIMD_COMPARED_SETS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SIS_KERNELS_SIMD_COMPARED_SETS_INL_H_
#undef SIS_KERNELS_SIMD_COMPARED_SETS_INL_H_
#else
#define SIS_KERNELS_SIMD_COMPARED_SETS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <span>

#include "hwy/highway.h"
#include "kernels/decide/simd_groups-inl.h"
#include "kernels/decide/simd_set_checker-inl.h"
#include "kernels/decide/top_k_sets/top_k_sets.h"
#include "kernels/numerics/simd_math-inl.h"
#include "kernels/records/simd_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {

class ComparedSets {
 public:
  ComparedSets(const TopKSets& sets, int32_t vocabulary_size)
      : slots_(sets.slots),
        vocabulary_size_(vocabulary_size),
        ids_({reinterpret_cast<const float*>(sets.ids.data()), sets.ids.size()}, slots_),
        log_probs_(sets.log_probs, slots_) {}

  // As HashedSets::Find.
  HWY_INLINE bool Find(const GroupPart& part, std::span<const RowValues> ids, float* log_probs) {
    const TokenMajorRows id_rows = ids_.Group(0, part.index, part.first_lane, part.count);
    const TokenMajorRows log_prob_rows =
        log_probs_.Group(0, part.index, part.first_lane, part.count);
    for (size_t lane = 0; lane < kGroup; lane += kLanes) {
      SetChecker<SetKind::kCurrent> checker;
      CheckSlots(id_rows, log_prob_rows, lane, slots_, checker);
      if (!checker.AllValid(vocabulary_size_)) return false;
      size_t rank = 0;
      for (; rank + kRanksAtOnce <= ids.size(); rank += kRanksAtOnce) {
        FindRanks<kRanksAtOnce>(checker, &ids[rank], lane, log_probs + rank * kGroup);
      }
      for (; rank < ids.size(); ++rank) {
        FindRanks<1>(checker, &ids[rank], lane, log_probs + rank * kGroup);
      }
    }
    return true;
  }

 private:
  // Of kCount ranks, side by side: no comparison waits for the last.
  template <size_t kCount>
  HWY_INLINE void FindRanks(const SetChecker<SetKind::kCurrent>& sets, const RowValues* ids,
                            size_t lane, float* log_probs) const {
    const FloatTag d;
    const Uint32Tag du;
    Int32s wanted[kCount];
    Floats found[kCount];
    for (size_t i = 0; i < kCount; ++i) {
      wanted[i] = hn::BitCast(Int32Tag(), hn::Load(du, ids[i].data() + lane));
      found[i] = hn::NaN(d);
    }
    for (size_t slot = 0; slot < slots_; ++slot) {
      const Int32s id = sets.Id(slot);
      const Floats log_prob = sets.LogProb(slot);
      for (size_t i = 0; i < kCount; ++i) {
        const Mask same = hn::RebindMask(d, hn::Eq(wanted[i], id));
        found[i] = hn::IfThenElse(same, log_prob, found[i]);
      }
    }
    for (size_t i = 0; i < kCount; ++i) {
      hn::Store(found[i], d, log_probs + i * kGroup + lane);
    }
  }

  const size_t slots_;
  const int32_t vocabulary_size_;
  TokenMajorPositions ids_;
  TokenMajorPositions log_probs_;
};

}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#endif  // include guard of the target
