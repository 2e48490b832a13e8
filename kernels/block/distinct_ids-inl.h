// Checks one set after another for repeated ids, in time linear in the size of the set.
#if defined(SIS_KERNELS_DISTINCT_IDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SIS_KERNELS_DISTINCT_IDS_INL_H_
#undef SIS_KERNELS_DISTINCT_IDS_INL_H_
#else
#define SIS_KERNELS_DISTINCT_IDS_INL_H_
#endif

#include <array>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/block/block.h"
#include "kernels/numerics/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {

// Each id writes its slot to a hash table, and reads it back. An id that reads another slot, as few
// of a hundred different ids do, is compared with all ids. The table need not be cleared.
class DistinctIds {
 public:
  // Returns true if no id is repeated. `count` is at most kMaxBlockSlots. Reads up to a vector
  // beyond the ids.
  HWY_INLINE bool AllDiffer(const int32_t* ids, size_t count) {
    const Uint32Tag du;
    const hn::Rebind<uint16_t, Uint32Tag> d16;
    for (size_t s = 0; s < count; s += kLanes) {
      const Uint32s some = hn::BitCast(du, hn::LoadU(Int32Tag(), ids + s));
      const Uint32s hashes =
          hn::ShiftRight<32 - kPlaceBits>(hn::Mul(some, hn::Set(du, 0x9E3779B1u)));
      hn::StoreU(hn::DemoteTo(d16, hn::BitCast(Int32Tag(), hashes)), d16, places_.data() + s);
    }
    for (size_t s = 0; s < count; ++s) slots_[places_[s]] = static_cast<uint8_t>(s);
    constexpr size_t kAtOnce = 4;  // one branch per this many vectors
    for (size_t first = 0; first < count; first += kAtOnce) {
      const size_t end = first + kAtOnce < count ? first + kAtOnce : count;
      uint32_t others = 0;
      for (size_t s = first; s < end; ++s) others |= slots_[places_[s]] ^ static_cast<uint8_t>(s);
      if (HWY_UNLIKELY(others != 0) && AnyStandsTwice(ids, count, first, end)) return false;
    }
    return true;
  }

 private:
  static constexpr int kPlaceBits = 14;  // the table stays in a first-level cache

  HWY_NOINLINE bool AnyStandsTwice(const int32_t* ids, size_t count, size_t first,
                                   size_t end) const {
    for (size_t i = first; i < end; ++i) {
      if (slots_[places_[i]] == i) continue;
      for (size_t s = 0; s < count; ++s) {
        if (ids[s] == ids[i] && s != i) return true;
      }
    }
    return false;
  }

  std::array<uint16_t, kMaxBlockSlots + kLanes> places_;
  std::array<uint8_t, size_t{1} << kPlaceBits> slots_;
};

}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#endif  // include guard of the target
