// One group's log-probs, rank by rank, from any layout: what the kernel's inner loop reads.
#if defined(SIS_KERNELS_SIMD_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SIS_KERNELS_SIMD_ROWS_INL_H_
#undef SIS_KERNELS_SIMD_ROWS_INL_H_
#else
#define SIS_KERNELS_SIMD_ROWS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {

// Ranks are read four at a time.
inline constexpr size_t kRanksAtOnce = 4;

// Far enough to hide the memory's latency behind the arithmetic of what comes before. Prefetching
// past the end is harmless.
HWY_INLINE void PrefetchAhead(const void* address) {
  constexpr uintptr_t kBytesAhead = 8192;
  hwy::Prefetch(reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(address) + kBytesAhead));
}

// Rank-major rows of T: float, or uint16_t for halves.
template <typename T>
class RankMajorRows {
 public:
  // The group's row of rank 0.
  RankMajorRows(const T* rows, size_t /*slots*/) : rows_(rows) {}

  // Ranks rank to rank + 3 of the kLanes positions from `lane` on.
  HWY_INLINE FourFloats Load(size_t lane, size_t rank) const {
    const T* row = rows_ + rank * kGroupPositions;
    if (lane == 0) {
      constexpr size_t kLineElements = 64 / sizeof(T);
      for (size_t i = 0; i < kRanksAtOnce * kGroupPositions; i += kLineElements) {
        PrefetchAhead(row + i);
      }
    }
    row += lane;
    return {{LoadFloats(row), LoadFloats(row + kGroupPositions)},
            {LoadFloats(row + 2 * kGroupPositions), LoadFloats(row + 3 * kGroupPositions)}};
  }

  // The last one, two or three ranks, from `rank` on.
  template <size_t kCount>
  HWY_INLINE void LoadLast(size_t lane, size_t rank, Floats (&last)[kCount]) const {
    const T* row = rows_ + rank * kGroupPositions;
    if (lane == 0) PrefetchAhead(row);
    last[0] = LoadFloats(row + lane);
    if constexpr (kCount > 1) last[1] = LoadFloats(row + lane + kGroupPositions);
    if constexpr (kCount > 2) last[2] = LoadFloats(row + lane + 2 * kGroupPositions);
  }

 private:
  const T* rows_;
};

// Token-major values: 16 positions of K, transposed on the fly.
class TokenMajorRows {
 public:
  TokenMajorRows(const float* values, size_t slots) : values_(values), slots_(slots) {}

  HWY_INLINE FourFloats Load(size_t lane, size_t rank) const {
    const float* ahead = values_ + lane * slots_ + rank * kLanes;
    for (size_t i = 0; i < kRanksAtOnce * kLanes; i += 16) PrefetchAhead(ahead + i);
    return Transpose(lane, rank);
  }

  template <size_t kCount>
  HWY_INLINE void LoadLast(size_t lane, size_t rank, Floats (&last)[kCount]) const {
    if (slots_ < kRanksAtOnce) {
      for (size_t i = 0; i < kCount; ++i) last[i] = Gather(lane, rank + i);
      return;
    }
    // Not past the end of the last position's values.
    const size_t first = std::min(rank, slots_ - kRanksAtOnce);
    const FourFloats rows = Transpose(lane, first);
    const Floats in_order[] = {rows.first.first, rows.first.second, rows.second.first,
                               rows.second.second};
    for (size_t i = 0; i < kCount; ++i) last[i] = in_order[rank - first + i];
  }

 private:
  HWY_INLINE Floats Gather(size_t lane, size_t rank) const {
    HWY_ALIGN float row[kLanes];
    for (size_t i = 0; i < kLanes; ++i) row[i] = values_[(lane + i) * slots_ + rank];
    return hn::Load(FloatTag(), row);
  }

  // Four values of one position, and of those 4, 8 and 12 lanes on, if there are as many.
  template <class D>
  HWY_INLINE hn::Vec<D> FourOf(D d, const float* values) const {
    if constexpr (hn::MaxLanes(D()) == 4) {
      return hn::LoadU(d, values);
    } else {
      const hn::Half<D> half;
      const float* upper = values + hn::MaxLanes(D()) / 2 * slots_;
      return hn::Combine(d, FourOf(half, upper), FourOf(half, values));
    }
  }

  HWY_INLINE FourFloats Transpose(size_t lane, size_t rank) const {
    const FloatTag d;
    const hn::RepartitionToWide<FloatTag> dw;
    const float* values = values_ + lane * slots_ + rank;
    const Floats v0 = FourOf(d, values);
    const Floats v1 = FourOf(d, values + slots_);
    const Floats v2 = FourOf(d, values + 2 * slots_);
    const Floats v3 = FourOf(d, values + 3 * slots_);
    const auto low01 = hn::BitCast(dw, hn::InterleaveLower(d, v0, v1));
    const auto low23 = hn::BitCast(dw, hn::InterleaveLower(d, v2, v3));
    const auto high01 = hn::BitCast(dw, hn::InterleaveUpper(d, v0, v1));
    const auto high23 = hn::BitCast(dw, hn::InterleaveUpper(d, v2, v3));
    return {{hn::BitCast(d, hn::InterleaveLower(dw, low01, low23)),
             hn::BitCast(d, hn::InterleaveUpper(dw, low01, low23))},
            {hn::BitCast(d, hn::InterleaveLower(dw, high01, high23)),
             hn::BitCast(d, hn::InterleaveUpper(dw, high01, high23))}};
  }

  const float* values_;
  size_t slots_;
};

}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#endif  // include guard of the target
