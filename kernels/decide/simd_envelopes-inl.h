// Reduces the slots of kLanes positions to envelopes, covered masses, the points of the prefix
// curve and the total variation, as decide.h defines them for one position.
//
// The slots of all positions are contiguous. Maxima are computed position by position, on whole
// vectors, and joined at the end. Exponentials are computed without regard to positions. Only
// masses are computed slot by slot, because they must be added in the order of the ranks.
#if defined(SIS_KERNELS_SIMD_ENVELOPES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SIS_KERNELS_SIMD_ENVELOPES_INL_H_
#undef SIS_KERNELS_SIMD_ENVELOPES_INL_H_
#else
#define SIS_KERNELS_SIMD_ENVELOPES_INL_H_
#endif

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/block/block.h"
#include "kernels/block/simd_rows-inl.h"
#include "kernels/decide/backend.h"
#include "kernels/numerics/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {

// Positions are read in groups of this size: one vector, or a few on narrower machines.
inline constexpr size_t kGroup = 16;
static_assert(kGroup % kLanes == 0);

// Maximum number of slots read beyond those of a group: one vector from the last slot's end.
inline constexpr size_t kSlotsBehind = kLanes;
static_assert(kSlotsBehind * sizeof(float) <= kBlockSlack);

HWY_INLINE Int32s LoadBytes(const uint8_t* bytes) {
  return hn::PromoteTo(Int32Tag(), hn::LoadU(hn::Rebind<uint8_t, FloatTag>(), bytes));
}

// The slots of kLanes positions.
template <typename Code>
struct LaneSlots {
  const uint8_t* counts;       // [kLanes]
  const uint8_t* multipliers;  // [kLanes] of fixed16
  const Code* behavior;        // float, or the codes of fixed16
  const float* current;
  // Where the slots of each position begin, filled in from the counts.
  uint32_t begins[kLanes + 1];
  bool equal;  // whether all counts are

  HWY_INLINE size_t size() const { return begins[kLanes]; }
  HWY_INLINE void FindBegins() {
    const Int32Tag di;
    const uint32_t first = counts[0];
    equal = hn::AllTrue(di, hn::Eq(LoadBytes(counts), hn::Set(di, static_cast<int32_t>(first))));
    if (equal) {
      for (uint32_t i = 0; i <= kLanes; ++i) begins[i] = i * first;
      return;
    }
    uint32_t end = 0;
    for (size_t i = 0; i < kLanes; ++i) {
      begins[i] = end;
      end += counts[i];
    }
    begins[kLanes] = end;
  }
};

struct Envelopes {
  Floats log_envelope;
  Floats covered_mass;
};

// Returns which sums are valid. Sums of exponentials are never negative.
HWY_INLINE Mask AreMasses(Floats covered_mass) {
  return hn::Le(covered_mass, Constant(1.0f + kRoundingSlack));  // not so for NaN
}

// The results that the caller wants.
struct SlotPlan {
  size_t top_k;
  bool total_variation;
  std::span<const int> prefix_curve;  // below top_k
};

// The results.
struct SlotResults {
  Envelopes envelopes;
  Mask valid;
  Floats total_variation;              // if wanted
  Envelopes prefix[kMaxPrefixPoints];  // one per point of the curve
};

// Memory for the slots of kLanes positions.
struct SlotScratch {
  static constexpr size_t kRoom = kLanes * kMaxBlockSlots + 4 * kLanes;
  HWY_ALIGN float log_ratios[kRoom];
  HWY_ALIGN float exponentials[kRoom];
  HWY_ALIGN float differences[kRoom];  // of both policies' exponentials
};

// Prefetches far enough ahead to hide the memory's latency behind arithmetic. Addresses beyond the
// array are harmless.
HWY_INLINE void PrefetchAhead(const void* address, uintptr_t distance = 8192) {
  hwy::Prefetch(reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(address) + distance));
}

// Loads kLanes behaviour log-probs of one position. `step` is the step of fixed16.
HWY_INLINE Floats LoadBehavior(const float* log_probs, Floats /*step*/) {
  return LoadFloats(log_probs);
}
HWY_INLINE Floats LoadBehavior(const uint16_t* codes, Floats step) {
  const FloatTag d;
  const Int32s code = hn::PromoteTo(Int32Tag(), hn::LoadU(hn::Rebind<uint16_t, FloatTag>(), codes));
  // Fixed16: 1/64 - code * (multiplier * 2^-18).
  return MinusExactProduct(Constant(0x1p-6f), hn::ConvertTo(d, code), step);
}

// Stores the step of each position.
template <typename Code>
HWY_INLINE void StoreSteps(const LaneSlots<Code>& slots, float* steps) {
  if constexpr (sizeof(Code) == sizeof(uint16_t)) {
    const Floats multipliers = hn::ConvertTo(FloatTag(), LoadBytes(slots.multipliers));
    hn::Store(hn::Mul(multipliers, Constant(0x1p-18f)), FloatTag(), steps);
  }
}

// Returns the maxima of kLanes vectors: that of vector i in lane i.
HWY_INLINE Floats JoinMaxima(const Floats (&v)[kLanes]) {
  const FloatTag d;
  const hn::RepartitionToWide<FloatTag> dw;
  const auto two = [&](Floats a, Floats b) HWY_ATTR {
    return hn::Max(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  };
  // Reduces four vectors to their maxima within each block of four lanes.
  const auto four = [&](size_t i) HWY_ATTR {
    const auto a = hn::BitCast(dw, two(v[i], v[i + 1]));
    const auto b = hn::BitCast(dw, two(v[i + 2], v[i + 3]));
    return hn::Max(hn::BitCast(d, hn::InterleaveLower(dw, a, b)),
                   hn::BitCast(d, hn::InterleaveUpper(dw, a, b)));
  };
#if HWY_TARGET <= HWY_AVX3
  const auto halves = [](Floats a, Floats b) HWY_ATTR {
    return hn::Max(Floats{_mm512_shuffle_f32x4(a.raw, b.raw, 0x88)},
                   Floats{_mm512_shuffle_f32x4(a.raw, b.raw, 0xdd)});
  };
  return halves(halves(four(0), four(4)), halves(four(8), four(12)));
#else
  if constexpr (kLanes == 4) {
    return four(0);
  } else {
    const Floats a = four(0), b = four(4);
    return hn::Max(hn::ConcatLowerLower(d, b, a), hn::ConcatUpperUpper(d, b, a));
  }
#endif
}

// Returns the largest log-ratio of each position. With kEqual all have `equal` slots.
template <bool kEqual, typename Code>
HWY_INLINE Floats MaxLogRatios(const LaneSlots<Code>& slots, const float* steps, size_t equal = 0) {
  const FloatTag d;
  Floats maxima[kLanes];
  HWY_UNROLL(16)
  for (size_t i = 0; i < kLanes; ++i) {
    const size_t count = kEqual ? equal : slots.counts[i];
    const size_t begin = kEqual ? i * equal : slots.begins[i];
    const Code* q = slots.behavior + begin;
    const float* p = slots.current + begin;
    const Floats step = sizeof(Code) == sizeof(uint16_t) ? hn::Set(d, steps[i]) : hn::Zero(d);
    const auto log_ratios = [&](size_t slot) HWY_ATTR {
      return hn::Sub(LoadFloats(p + slot), LoadBehavior(q + slot, step));
    };
    Floats max = hn::IfThenElse(hn::FirstN(d, HWY_MIN(count, kLanes)), log_ratios(0),
                                Constant(kMinusInfinity));
    if (count > kLanes) {
      for (size_t slot = kLanes; slot + kLanes < count; slot += kLanes) {
        max = hn::Max(max, log_ratios(slot));
      }
      max = hn::Max(max, log_ratios(count - kLanes));  // overlaps the previous vector
    }
    maxima[i] = max;
  }
  return JoinMaxima(maxima);
}

// Calls visit.operator()<kCount>(i) for i in [0, end), four at a time, then for the remaining ones.
template <class Visitor>
HWY_INLINE void VisitFours(size_t end, const Visitor& visit) {
  size_t i = 0;
  for (; i + 4 <= end; i += 4) visit.template operator()<4>(i);
  VisitLastRanks(i, end - i, visit);
}

// Returns the sums of the values of kLanes positions, added in the order of the ranks. `longest` is
// the largest count.
HWY_INLINE Floats SumRanks(const float* values, const uint32_t* begins, const uint8_t* counts,
                           size_t longest) {
  const FloatTag d;
  const Int32s ends = LoadBytes(counts);
  const auto has = [&](size_t rank) HWY_ATTR {
    return hn::RebindMask(d, hn::Gt(ends, hn::Set(Int32Tag(), static_cast<int32_t>(rank))));
  };
  // For so few remaining positions scalar additions are faster than a vector.
  constexpr size_t kFewPositions = kLanes > 4 ? 3 : 1;
  Floats sums = hn::Zero(d);
  for (size_t rank = 0; rank < longest; rank += 4) {
    if (rank > 0 && hn::CountTrue(d, has(rank)) <= kFewPositions) {
      HWY_ALIGN float of_each[kLanes];
      hn::Store(sums, d, of_each);
      uint8_t bits[8] = {};
      hn::StoreMaskBits(d, has(rank), bits);
      for (uint32_t left = bits[0] | bits[1] << 8; left != 0; left &= left - 1) {
        const auto i = static_cast<size_t>(std::countr_zero(left));
        float sum = of_each[i];
        for (size_t r = rank; r < counts[i]; ++r) sum = sum + values[begins[i] + r];
        of_each[i] = sum;
      }
      return hn::Load(d, of_each);
    }
    Floats ranks[4];
    LoadRanks(values, begins, rank, ranks);
    for (size_t i = 0; i < 4; ++i) {
      sums = hn::Add(sums, hn::IfThenElseZero(has(rank + i), ranks[i]));
    }
  }
  return sums;
}

// Prefetches data ahead of the slots [first, end), at the pace of the arithmetic. All prefetches at
// once would be too many.
template <typename Code>
HWY_INLINE void PrefetchSlots(const LaneSlots<Code>& slots, size_t first, size_t end) {
  for (size_t slot = first; slot < end; slot += 64 / sizeof(float)) {
    PrefetchAhead(slots.current + slot);
  }
  for (size_t slot = first; slot < end; slot += 64 / sizeof(Code)) {
    PrefetchAhead(slots.behavior + slot);
  }
}

// Stores the exponentials of contiguous values, in whole vectors. Calls before(first, end) before
// each step, with the range of its values.
template <class Before>
HWY_INLINE void StoreExponentials(const float* from, size_t count, float* to,
                                  const Before& before) {
  VisitFours((count + kLanes - 1) / kLanes, [&]<size_t kCount>(size_t vector) HWY_ATTR
             __attribute__((always_inline)) {
               const size_t first = vector * kLanes;
               before(first, first + kCount * kLanes);
               Floats values[kCount], exponentials[kCount];
               for (size_t i = 0; i < kCount; ++i) {
                 values[i] = LoadFloats(from + first + i * kLanes);
               }
               ExpOfEach(values, exponentials);
               for (size_t i = 0; i < kCount; ++i) {
                 hn::Store(exponentials[i], FloatTag(), to + first + i * kLanes);
               }
             });
}
template <typename Code>
HWY_INLINE void StoreExponentials(const LaneSlots<Code>& slots, float* to) {
  StoreExponentials(slots.current, slots.size(), to,
                    [&](size_t first, size_t end) HWY_ATTR { PrefetchSlots(slots, first, end); });
}

// Returns the sums of the exponentials of positions with `count` slots each.
template <typename Code>
HWY_INLINE Floats EqualMasses(const LaneSlots<Code>& slots, size_t count) {
  Floats masses = hn::Zero(FloatTag());
  VisitFours(
      count, [&]<size_t kCount>(size_t rank) HWY_ATTR __attribute__((always_inline)) {
        PrefetchSlots(slots, rank * kLanes, (rank + kCount) * kLanes);
        Floats values[kCount], exponentials[kCount];
        LoadRanks(slots.current, slots.begins, rank, values);
        ExpOfEach(values, exponentials);
        for (size_t i = 0; i < kCount; ++i) masses = hn::Add(masses, exponentials[i]);
      });
  return masses;
}

// Serves calls that need envelopes at several ranks, or the total variation.
template <bool kTotalVariation, typename Code>
HWY_NOINLINE void ReadRankByRank(const LaneSlots<Code>& slots, const float* steps, size_t longest,
                                 const SlotPlan& plan, SlotScratch& scratch, SlotResults& results) {
  const FloatTag d;
  const Int32Tag di;
  for (size_t i = 0; i < kLanes; ++i) {
    const Floats step = sizeof(Code) == sizeof(uint16_t) ? hn::Set(d, steps[i]) : hn::Zero(d);
    const size_t begin = slots.begins[i];
    const Code* q = slots.behavior + begin;
    // Also writes after the position's slots; the next position overwrites that.
    for (size_t slot = 0; slot < slots.counts[i]; slot += kLanes) {
      const Floats behavior = LoadBehavior(q + slot, step);
      hn::StoreU(hn::Sub(LoadFloats(slots.current + begin + slot), behavior), d,
                 scratch.log_ratios + begin + slot);
      if (kTotalVariation) hn::StoreU(behavior, d, scratch.differences + begin + slot);
    }
  }
  StoreExponentials(slots, scratch.exponentials);
  if (kTotalVariation) {
    StoreExponentials(scratch.differences, slots.size(), scratch.differences,
                      [](size_t, size_t) {});
    for (size_t slot = 0; slot < slots.size(); slot += kLanes) {
      const Floats difference = hn::Sub(hn::Load(d, scratch.exponentials + slot),
                                        hn::Load(d, scratch.differences + slot));
      hn::Store(hn::Abs(difference), d, scratch.differences + slot);
    }
  }

  const Int32s counts = LoadBytes(slots.counts);
  Envelopes so_far = {Constant(kMinusInfinity), hn::Zero(d)};
  Floats distance = hn::Zero(d);
  // The next point of the curve, or after the last one top_k; and its number of ranks.
  size_t point = 0;
  const size_t points = plan.prefix_curve.size();
  size_t next = points > 0 ? plan.prefix_curve[0] : plan.top_k;
  const auto keep = [&]() HWY_ATTR __attribute__((always_inline)) {
    Envelopes& at = point < points ? results.prefix[point] : results.envelopes;
    at = {FlushAll(so_far.log_envelope), so_far.covered_mass};
    ++point;
    next = point < points ? plan.prefix_curve[point] : point == points ? plan.top_k : ~size_t{0};
  };
  for (size_t rank = 0; rank < longest; rank += 4) {
    Floats log_ratios[4], exponentials[4], differences[4];
    LoadRanks(scratch.log_ratios, slots.begins, rank, log_ratios);
    LoadRanks(scratch.exponentials, slots.begins, rank, exponentials);
    if (kTotalVariation) LoadRanks(scratch.differences, slots.begins, rank, differences);
    for (size_t i = 0; i < 4; ++i) {
      const Mask has =
          hn::RebindMask(d, hn::Gt(counts, hn::Set(di, static_cast<int32_t>(rank + i))));
      so_far.log_envelope = hn::Max(so_far.log_envelope,
                                    hn::IfThenElse(has, log_ratios[i], Constant(kMinusInfinity)));
      so_far.covered_mass = hn::Add(so_far.covered_mass, hn::IfThenElseZero(has, exponentials[i]));
      if (kTotalVariation && rank + i < plan.top_k) {
        distance = hn::Add(distance, hn::IfThenElseZero(has, differences[i]));
      }
      if (HWY_UNLIKELY(rank + i + 1 == next)) keep();
    }
  }
  // The points beyond the longest set have its results.
  while (point <= points) keep();
  results.valid = AreMasses(so_far.covered_mass);
  results.total_variation = hn::Min(Constant(1.0f), hn::Mul(Constant(0.5f), distance));
}

// Computes the results that `plan` requests.
template <typename Code>
HWY_INLINE void ReadSlots(const LaneSlots<Code>& slots, const SlotPlan& plan, SlotScratch& scratch,
                          SlotResults& results) {
  HWY_ALIGN float steps[kLanes];
  StoreSteps(slots, steps);
  const size_t longest =
      slots.equal
          ? slots.counts[0]
          : static_cast<size_t>(hn::GetLane(hn::MaxOfLanes(Int32Tag(), LoadBytes(slots.counts))));
  if (HWY_UNLIKELY(plan.total_variation)) {
    ReadRankByRank<true>(slots, steps, longest, plan, scratch, results);
  } else if (HWY_UNLIKELY(!plan.prefix_curve.empty() || plan.top_k < longest)) {
    ReadRankByRank<false>(slots, steps, longest, plan, scratch, results);
  } else {
    Envelopes& envelopes = results.envelopes;
    if (slots.equal) {
      envelopes.covered_mass = EqualMasses(slots, longest);
      envelopes.log_envelope = FlushAll(MaxLogRatios<true>(slots, steps, longest));
    } else {
      StoreExponentials(slots, scratch.exponentials);
      envelopes.covered_mass = SumRanks(scratch.exponentials, slots.begins, slots.counts, longest);
      envelopes.log_envelope = FlushAll(MaxLogRatios<false>(slots, steps));
    }
    results.valid = AreMasses(envelopes.covered_mass);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#endif  // include guard of the target
