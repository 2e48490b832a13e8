// What the slots of kLanes positions come down to: envelopes, covered masses, the points of the
// prefix curve and the total variation. In the order of the ranks, as decide.h does it for one
// position.
#if defined(SIS_KERNELS_SIMD_SLOTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SIS_KERNELS_SIMD_SLOTS_INL_H_
#undef SIS_KERNELS_SIMD_SLOTS_INL_H_
#else
#define SIS_KERNELS_SIMD_SLOTS_INL_H_
#endif

#include <cstddef>
#include <span>

#include "hwy/highway.h"
#include "kernels/decide/backend.h"
#include "kernels/numerics/simd_math-inl.h"
#include "kernels/records/simd_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {

// What the slots tell of kLanes positions.
struct Envelopes {
  Floats log_envelope;
  Floats covered_mass;
};

// What is wanted of the slots.
struct SlotPlan {
  size_t slots;  // all of which have to be valid
  size_t top_k;
  bool total_variation;
  std::span<const int> prefix_curve;
};

// What came of them.
struct SlotResults {
  Envelopes envelopes;
  Mask valid;
  Floats total_variation;              // if wanted
  Envelopes prefix[kMaxPrefixPoints];  // one per point of the curve
};

// Keeps the envelopes of the curve's points, and those at top_k if slots lie beyond it, as the
// ranks go by.
class PrefixPoints {
 public:
  PrefixPoints(const SlotPlan& plan, SlotResults& results)
      : curve_(plan.prefix_curve),
        results_(results),
        top_k_(plan.top_k < plan.slots ? plan.top_k : kNone) {
    FindNext();
  }

  // How many ranks the next point takes; larger than any if there is none.
  HWY_INLINE size_t next() const { return next_; }
  HWY_INLINE bool empty() const { return next_ == kNone; }
  HWY_INLINE void Keep(Envelopes envelopes) {
    if (next_ == top_k_) {
      results_.envelopes = envelopes;
      top_k_ = kNone;
    }
    while (index_ < curve_.size() && next_ == static_cast<size_t>(curve_[index_])) {
      results_.prefix[index_++] = envelopes;
    }
    FindNext();
  }
  // Of points beyond the last used slot.
  HWY_INLINE void KeepRest(Envelopes envelopes) {
    while (HWY_UNLIKELY(!empty())) Keep(envelopes);
  }

 private:
  static constexpr size_t kNone = ~size_t{0};

  HWY_INLINE void FindNext() {
    next_ = index_ < curve_.size() ? HWY_MIN(top_k_, static_cast<size_t>(curve_[index_])) : top_k_;
  }

  std::span<const int> curve_;
  SlotResults& results_;
  size_t top_k_;  // kNone once it is kept, or if the last slot is it
  size_t index_ = 0;
  size_t next_;
};

// Of log-probs whose covered mass was summed up exactly: whether they are valid. One that is too
// large has an exponential above the limit.
HWY_INLINE Mask AreMasses(Floats covered_mass) {
  return hn::Le(covered_mass, Constant(1.0f + kRoundingSlack));  // not so for NaN
}

// Larger than those of -87 for every value that could pass the check of the mass although
// ExpInRange is wrong for it: numbers below -87, and -inf. On AVX3 numbers above 88 and NaN need
// not be found here: their exponentials are above 2^99, or NaN, so the mass is not valid
// (tests/conformance/validity_test.cc).
HWY_INLINE Uint32s RangeBits(Floats x) {
  const Uint32Tag du;
#if HWY_TARGET <= HWY_AVX3
  return hn::BitCast(du, x);
#else
  return hn::BitCast(du, hn::Abs(x));
#endif
}
// By the largest of those bits.
HWY_INLINE bool AllInRange(Uint32s largest_bits) {
  const Uint32Tag du;
  const Uint32s limit = RangeBits(Constant(-87.0f));
  return hn::AllTrue(du, hn::Eq(hn::Max(largest_bits, limit), limit));
}

// kLanes EnvelopeAccumulators side by side, for used slots with log-probs of at least -87. There
// are two maxima, so that one comparison need not wait for the last.
class PlainAccumulators {
 public:
  HWY_INLINE PlainAccumulators()
      : even_(Constant(kMinusInfinity)),
        odd_(Constant(kMinusInfinity)),
        covered_mass_(hn::Zero(FloatTag())),
        largest_bits_(hn::Zero(Uint32Tag())),
        last_behavior_(hn::Zero(FloatTag())) {}

  // Four ranks, none of them the last of a point.
  HWY_INLINE void Add(FourFloats behavior, FourFloats current) {
    RaiseMaximum(even_, behavior.first.first, current.first.first);
    RaiseMaximum(odd_, behavior.first.second, current.first.second);
    RaiseMaximum(even_, behavior.second.first, current.second.first);
    RaiseMaximum(odd_, behavior.second.second, current.second.second);
    const FourFloats exponentials = ExpInRange(current);
    AddMass(exponentials.first.first);
    AddMass(exponentials.first.second);
    AddMass(exponentials.second.first);
    AddMass(exponentials.second.second);
  }

  // The ranks from `rank` on.
  template <size_t kCount>
  HWY_INLINE void AddInOrder(const Floats (&behavior)[kCount], const Floats (&current)[kCount],
                             size_t rank, PrefixPoints& points) {
    Floats exponentials[kCount];
    ExpOfEach(current, exponentials);
    for (size_t i = 0; i < kCount; ++i) {
      RaiseMaximum(i % 2 == 0 ? even_ : odd_, behavior[i], current[i]);
      AddMass(exponentials[i]);
      if (HWY_UNLIKELY(rank + i + 1 == points.next())) points.Keep(Finish());
    }
  }

  // The behaviour's values of the last rank.
  HWY_INLINE Floats last_behavior() const { return last_behavior_; }
  HWY_INLINE Uint32s largest_bits() const { return largest_bits_; }

  HWY_INLINE Envelopes Finish() const { return {FlushAll(hn::Max(even_, odd_)), covered_mass_}; }

 private:
  HWY_INLINE void RaiseMaximum(Floats& max, Floats behavior, Floats current) {
    last_behavior_ = behavior;
    largest_bits_ = hn::Max(largest_bits_, RangeBits(current));
    max = hn::Max(max, hn::Sub(current, behavior));
  }
  HWY_INLINE void AddMass(Floats exponential) {
    covered_mass_ = hn::Add(covered_mass_, exponential);
  }

  Floats even_;
  Floats odd_;
  Floats covered_mass_;
  Uint32s largest_bits_;
  Floats last_behavior_;
};

// All ranks.
template <class BehaviorRows, class CurrentRows>
HWY_INLINE void AddRanks(const BehaviorRows& behavior, const CurrentRows& current, size_t lane,
                         size_t end, PlainAccumulators& accumulators, PrefixPoints& points) {
  size_t rank = 0;
  for (; rank + kRanksAtOnce <= end; rank += kRanksAtOnce) {
    const FourFloats q = behavior.template Load<SlotUse::kUsed>(lane, rank);
    const FourFloats p = current.Load(lane, rank);
    if (HWY_LIKELY(rank + kRanksAtOnce < points.next())) {
      accumulators.Add(q, p);
    } else {
      const Floats q4[] = {q.first.first, q.first.second, q.second.first, q.second.second};
      const Floats p4[] = {p.first.first, p.first.second, p.second.first, p.second.second};
      accumulators.AddInOrder(q4, p4, rank, points);
    }
  }
  const auto add_last = [&]<size_t kCount>(size_t first) HWY_ATTR __attribute__((always_inline)) {
    Floats q[kCount], p[kCount];
    behavior.template LoadLast<SlotUse::kUsed>(lane, first, q);
    current.LoadLast(lane, first, p);
    accumulators.AddInOrder(q, p, first, points);
  };
  VisitLastRanks(rank, end - rank, add_last);
}

// The fast way, if all slots are used and no total variation is wanted. False if it can't tell;
// then `results` is anything.
template <class BehaviorRows, class CurrentRows>
HWY_INLINE bool AccumulatePlain(const BehaviorRows& behavior, const CurrentRows& current,
                                size_t lane, const SlotPlan& plan, SlotResults& results) {
  PlainAccumulators accumulators;
  PrefixPoints points(plan, results);
  AddRanks(behavior, current, lane, plan.slots, accumulators, points);
  const Envelopes all = accumulators.Finish();
  if (HWY_LIKELY(plan.top_k == plan.slots)) results.envelopes = all;
  results.valid = AreMasses(all.covered_mass);
  // Used slots come first: if the last one is used, all are.
  const Mask used = behavior.IsUsed(accumulators.last_behavior(), lane);
  return hn::AllTrue(FloatTag(), used) && AllInRange(accumulators.largest_bits());
}

// Both policies' log-probs of kLanes positions, copied, so that the rare case is compiled for one
// layout only.
class CopiedSlots {
 public:
  template <class BehaviorRows, class CurrentRows>
  HWY_NOINLINE CopiedSlots(const BehaviorRows& behavior, const CurrentRows& current, size_t lane,
                           size_t slots)
      : slots_(slots) {
    Copy(behavior, lane, slots, behavior_);
    Copy(current, lane, slots, current_);
  }

  // Slots beyond are unused.
  size_t slots() const { return slots_; }

  HWY_INLINE Floats Behavior(size_t rank) const {
    return hn::Load(FloatTag(), behavior_ + rank * kLanes);
  }
  HWY_INLINE Floats Current(size_t rank) const {
    return hn::Load(FloatTag(), current_ + rank * kLanes);
  }

 private:
  template <class Rows>
  static HWY_INLINE void Copy(const Rows& rows, size_t lane, size_t slots, float* into) {
    VisitRanks(
        slots, [&]<size_t kCount>(size_t rank) HWY_ATTR __attribute__((always_inline)) {
          Floats values[kCount];
          ReadRanks(rows, lane, rank, values);
          for (size_t i = 0; i < kCount; ++i) {
            hn::Store(values[i], FloatTag(), into + (rank + i) * kLanes);
          }
        });
  }

  size_t slots_;
  HWY_ALIGN float behavior_[kMaxTopK * kLanes];
  HWY_ALIGN float current_[kMaxTopK * kLanes];
};

// Any log-probs, and the total variation if that is wanted. True if all slots were used.
template <bool kTotalVariation>
HWY_NOINLINE bool AccumulateAny(const CopiedSlots& slots, const SlotPlan& plan,
                                SlotResults& results) {
  const FloatTag d;
  const Floats minus_infinity = Constant(kMinusInfinity);
  PrefixPoints points(plan, results);
  Floats max = minus_infinity;
  Floats covered_mass = hn::Zero(d);
  Floats l1_distance = hn::Zero(d);
  Mask all_log_probs = hn::Eq(covered_mass, covered_mass);
  for (size_t rank = 0; rank < slots.slots(); ++rank) {
    const Floats behavior = slots.Behavior(rank);
    const Mask used = hn::Ne(behavior, minus_infinity);
    const Floats current = hn::IfThenElse(used, slots.Current(rank), minus_infinity);
    all_log_probs = hn::And(all_log_probs, hn::Le(current, Constant(kRoundingSlack)));
    max = hn::Max(max, hn::IfThenElse(used, hn::Sub(current, behavior), minus_infinity));
    if constexpr (kTotalVariation) {
      const TwoFloats exponentials = ExpAtMost88(TwoFloats{current, behavior});
      covered_mass = hn::Add(covered_mass, exponentials.first);
      if (rank < plan.top_k) {
        l1_distance =
            hn::Add(l1_distance, hn::Abs(hn::Sub(exponentials.first, exponentials.second)));
      }
    } else {
      covered_mass = hn::Add(covered_mass, ExpAtMost88(current));
    }
    if (rank + 1 == points.next()) points.Keep({FlushAll(max), covered_mass});
  }
  const Envelopes all = {FlushAll(max), covered_mass};
  points.KeepRest(all);
  if (plan.top_k == plan.slots) results.envelopes = all;
  results.valid = hn::And(all_log_probs, AreMasses(covered_mass));
  results.total_variation = hn::Min(Constant(1.0f), hn::Mul(Constant(0.5f), l1_distance));
  return slots.slots() == plan.slots &&
         hn::AllTrue(d, hn::Ne(slots.Behavior(plan.slots - 1), minus_infinity));
}

// A guess from the groups before this one.
struct Expectation {
  bool plain = true;
};

// Fills in what `plan` asks for.
template <class BehaviorRows, class CurrentRows>
HWY_INLINE void AccumulateSlots(const BehaviorRows& behavior, const CurrentRows& current,
                                size_t lane, const SlotPlan& plan, Expectation& expectation,
                                SlotResults& results) {
  const bool plain = expectation.plain && !plan.total_variation;
  if (HWY_LIKELY(plain) && HWY_LIKELY(AccumulatePlain(behavior, current, lane, plan, results))) {
    return;
  }
  const CopiedSlots slots(behavior, current, lane, plan.slots);
  expectation.plain = plan.total_variation ? AccumulateAny<true>(slots, plan, results)
                                           : AccumulateAny<false>(slots, plan, results);
}

}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#endif  // include guard of the target
