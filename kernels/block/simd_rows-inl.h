// Reads the rows of a [T, slots] array by vectors: one row after the other, or transposed, with one
// rank per vector and one position per lane.
#if defined(SIS_KERNELS_SIMD_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SIS_KERNELS_SIMD_ROWS_INL_H_
#undef SIS_KERNELS_SIMD_ROWS_INL_H_
#else
#define SIS_KERNELS_SIMD_ROWS_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "hwy/highway.h"
#include "kernels/block/block.h"
#include "kernels/numerics/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {

// Rows that vectors may read beyond their ends.
template <typename T>
class Rows {
 public:
  Rows(std::span<const T> values, size_t slots) : values_(values), slots_(slots) {}

  // Returns the first `used` values of row `index`, followed by a vector of any values. The row is
  // valid until the next call.
  HWY_INLINE const T* From(size_t index, size_t used) {
    const T* const row = values_.data() + index * slots_;
    if (HWY_LIKELY(index * slots_ + used + kLanes <= values_.size())) return row;
    std::copy_n(row, used, last_.begin());
    return last_.data();
  }

 private:
  const std::span<const T> values_;
  const size_t slots_;
  std::array<T, kMaxBlockSlots + kLanes> last_ = {};
};

// Ranks are read four at a time.
inline constexpr size_t kRanksAtOnce = 4;

// Transposes every four lanes of four vectors.
template <class D, class V = hn::Vec<D>>
HWY_INLINE Pair<Pair<V>> TransposeFours(D d, V v0, V v1, V v2, V v3) {
  const hn::RepartitionToWide<D> dw;
  const auto low01 = hn::BitCast(dw, hn::InterleaveLower(d, v0, v1));
  const auto low23 = hn::BitCast(dw, hn::InterleaveLower(d, v2, v3));
  const auto high01 = hn::BitCast(dw, hn::InterleaveUpper(d, v0, v1));
  const auto high23 = hn::BitCast(dw, hn::InterleaveUpper(d, v2, v3));
  return {{hn::BitCast(d, hn::InterleaveLower(dw, low01, low23)),
           hn::BitCast(d, hn::InterleaveUpper(dw, low01, low23))},
          {hn::BitCast(d, hn::InterleaveLower(dw, high01, high23)),
           hn::BitCast(d, hn::InterleaveUpper(dw, high01, high23))}};
}

// Loads four values of one position, and of the positions 4, 8 and 12 lanes further, if there are
// so many lanes.
template <class D, typename T>
HWY_INLINE hn::Vec<D> FoursOf(D d, const T* values, const uint32_t* begins) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return hn::LoadU(d, values + begins[0]);
  } else {
    const hn::Half<D> half;
    return hn::Combine(d, FoursOf(half, values, begins + hn::MaxLanes(D()) / 2),
                       FoursOf(half, values, begins));
  }
}

// Reads ranks rank to rank + kCount - 1, at most four, of kLanes positions. Their values, of 32
// bits, begin at begins [kLanes]. Always reads the memory of four ranks.
template <size_t kCount, typename T, class V = hn::Vec<hn::Rebind<T, FloatTag>>>
HWY_INLINE void LoadRanks(const T* values, const uint32_t* begins, size_t rank,
                          V (&ranks)[kCount]) {
  const hn::Rebind<T, FloatTag> d;
  const T* from = values + rank;
  const auto four = TransposeFours(d, FoursOf(d, from, begins), FoursOf(d, from, begins + 1),
                                   FoursOf(d, from, begins + 2), FoursOf(d, from, begins + 3));
  const V in_order[] = {four.first.first, four.first.second, four.second.first, four.second.second};
  for (size_t i = 0; i < kCount; ++i) ranks[i] = in_order[i];
}

// Calls visit.operator()<kCount>(rank) for the last `count` ranks, fewer than four, if there are
// any.
template <class Visitor>
HWY_INLINE void VisitLastRanks(size_t rank, size_t count, const Visitor& visit) {
  switch (count) {
    case 1:
      return visit.template operator()<1>(rank);
    case 2:
      return visit.template operator()<2>(rank);
    case 3:
      return visit.template operator()<3>(rank);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#endif  // include guard of the target
