// Whether recorded sets are valid (docs/numerics.md, section 2), a position a lane.
#if defined(SIS_KERNELS_SIMD_SET_CHECKER_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SIS_KERNELS_SIMD_SET_CHECKER_INL_H_
#undef SIS_KERNELS_SIMD_SET_CHECKER_INL_H_
#else
#define SIS_KERNELS_SIMD_SET_CHECKER_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/numerics/simd_math-inl.h"
#include "kernels/records/record_view.h"
#include "kernels/records/simd_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {

// The sets of kLanes positions, rank by rank: of records, of records whose used ids are known to
// differ, both also where a mass cuts them. Slots behind a cut count as unused, whatever they hold.
enum class SetKind { kRecord, kDistinctRecord, kCutRecord, kDistinctCutRecord };

constexpr bool HasDistinctIds(SetKind kind) {
  return kind == SetKind::kDistinctRecord || kind == SetKind::kDistinctCutRecord;
}
constexpr bool IsCut(SetKind kind) {
  return kind == SetKind::kCutRecord || kind == SetKind::kDistinctCutRecord;
}

template <SetKind kKind>
class SetChecker {
 public:
  // `mass`: where counts() ends.
  HWY_INLINE SetChecker(Int32s sampled_ids, Floats sampled_log_probs, float mass)
      : sampled_ids_(sampled_ids),
        sampled_log_probs_(sampled_log_probs),
        mass_target_(Constant(mass)),
        minus_counts_(hn::Zero(Int32Tag())),
        ranks_(hn::Set(Int32Tag(), kRankOutside)),
        lowest_id_(sampled_ids),
        highest_id_(sampled_ids),
        last_id_(hn::Set(Int32Tag(), -1)),
        last_log_prob_(Constant(kRoundingSlack)),
        mass_(hn::Zero(FloatTag())),
        valid_(hn::And(hn::Le(sampled_log_probs, Constant(kRoundingSlack)),
                       hn::Ne(sampled_log_probs, Constant(kMinusInfinity)))) {
    valid_ = hn::And(valid_, AsMask(hn::Gt(sampled_ids, hn::Set(Int32Tag(), -1))));
  }

  // The ids and log-probs of `rank` and those after it. Of sets to be cut, slots behind the cut are
  // made unused.
  template <size_t kCount>
  HWY_INLINE void Add(Int32s (&ids)[kCount], Floats (&log_probs)[kCount], size_t rank) {
    Floats exponentials[kCount];
    ExpOfEach(log_probs, exponentials);
    for (size_t i = 0; i < kCount; ++i) {
      if constexpr (IsCut(kKind)) Cut(ids[i], log_probs[i]);
      mass_ = hn::Add(mass_, ZeroBelowRange(log_probs[i], exponentials[i]));
    }
    if constexpr (!HasDistinctIds(kKind)) CheckDistinct(ids, log_probs, rank);
    for (size_t i = 0; i < kCount; ++i) {
      AddSlot(ids[i], log_probs[i], static_cast<int32_t>(rank + i));
    }
  }

  HWY_INLINE bool AllValid(int32_t vocabulary_size) const {
    const Int32Tag di;
    const Mask in_vocabulary = AsMask(hn::And(hn::Gt(lowest_id_, hn::Set(di, -2)),
                                              hn::Lt(highest_id_, hn::Set(di, vocabulary_size))));
    const Mask mass = hn::Le(mass_, Constant(1.0f + kRoundingSlack));
    return hn::AllTrue(FloatTag(), hn::And(hn::And(valid_, in_vocabulary), mass));
  }
  // Of the sampled tokens.
  HWY_INLINE Int32s ranks() const { return ranks_; }
  // How many of the first slots reach the mass, or all that are used; of sets to be cut.
  HWY_INLINE Int32s counts() const { return hn::Neg(minus_counts_); }
  // Whether more slots change nothing; of sets to be cut.
  HWY_INLINE bool AllCut() const { return hn::AllFalse(FloatTag(), IsOpen()); }

 private:
  static HWY_INLINE Mask AsMask(hn::Mask<Int32Tag> mask) {
    return hn::RebindMask(FloatTag(), mask);
  }

  // Which sets have not reached their mass. Where that is NaN the set is invalid anyway.
  HWY_INLINE Mask IsOpen() const { return hn::Lt(mass_, mass_target_); }
  HWY_INLINE void Cut(Int32s& ids, Floats& log_probs) {
    const Int32Tag di;
    const Mask is_open = IsOpen();
    ids = hn::IfThenElse(hn::RebindMask(di, is_open), ids, hn::Set(di, -1));
    log_probs = hn::IfThenElse(is_open, log_probs, Constant(kMinusInfinity));
    const Mask used = hn::Ne(log_probs, Constant(kMinusInfinity));
    minus_counts_ = hn::Add(minus_counts_, hn::VecFromMask(di, hn::RebindMask(di, used)));
  }

  // Against each other, and all before them. Unused slots all have the same id.
  template <size_t kCount>
  HWY_INLINE void CheckDistinct(const Int32s (&ids)[kCount], const Floats (&log_probs)[kCount],
                                size_t rank) {
    const Int32Tag di;
    hn::Mask<Int32Tag> repeated[kCount];
    for (size_t i = 0; i < kCount; ++i) {
      repeated[i] = hn::Lt(ids[i], ids[i]);  // none
      for (size_t j = 0; j < i; ++j) repeated[i] = hn::Or(repeated[i], hn::Eq(ids[i], ids[j]));
      hn::Store(ids[i], di, ids_ + (rank + i) * kLanes);
    }
    for (size_t before = 0; before < rank; ++before) {
      const Int32s id = hn::Load(di, ids_ + before * kLanes);
      for (size_t i = 0; i < kCount; ++i) repeated[i] = hn::Or(repeated[i], hn::Eq(ids[i], id));
    }
    for (size_t i = 0; i < kCount; ++i) {
      const Mask used = hn::Ne(log_probs[i], Constant(kMinusInfinity));
      valid_ = hn::AndNot(hn::And(used, AsMask(repeated[i])), valid_);
    }
  }

  HWY_INLINE void AddSlot(Int32s id, Floats log_prob, int32_t rank) {
    const Int32Tag di;
    const Mask used = hn::Ne(log_prob, Constant(kMinusInfinity));
    const Mask has_id = AsMask(hn::Ne(id, hn::Set(di, -1)));
    valid_ = hn::AndNot(hn::Xor(used, has_id), valid_);
    // Neither NaN nor above the slack, and nothing used after an unused slot.
    const Mask sorted = hn::Le(log_prob, last_log_prob_);
    valid_ = hn::And(valid_, sorted);
    const Mask tied = hn::And(used, hn::Eq(log_prob, last_log_prob_));
    const Mask ids_ascend = AsMask(hn::Gt(id, last_id_));
    valid_ = hn::AndNot(hn::AndNot(ids_ascend, tied), valid_);

    const hn::Mask<Int32Tag> sampled = hn::Eq(id, sampled_ids_);
    const auto differs = hn::Ne(hn::BitCast(di, log_prob), hn::BitCast(di, sampled_log_probs_));
    valid_ = hn::AndNot(AsMask(hn::And(sampled, differs)), valid_);
    ranks_ = hn::IfThenElse(sampled, hn::Set(di, rank), ranks_);

    lowest_id_ = hn::Min(lowest_id_, id);
    highest_id_ = hn::Max(highest_id_, id);
    last_id_ = id;
    last_log_prob_ = log_prob;
  }

  const Int32s sampled_ids_;
  const Floats sampled_log_probs_;
  const Floats mass_target_;
  Int32s minus_counts_;
  Int32s ranks_;
  Int32s lowest_id_;
  Int32s highest_id_;
  Int32s last_id_;
  Floats last_log_prob_;
  Floats mass_;
  Mask valid_;
  HWY_ALIGN int32_t ids_[HasDistinctIds(kKind) ? kLanes : kMaxTopK * kLanes];
};

template <SetKind kKind>
HWY_INLINE void CheckSlots(const TokenMajorRows<int32_t>& ids,
                           const TokenMajorRows<float>& log_probs, size_t lane, size_t slots,
                           SetChecker<kKind>& checker) {
  const auto add = [&]<size_t kCount>(size_t rank) HWY_ATTR __attribute__((always_inline)) {
    Int32s some_ids[kCount];
    Floats some_log_probs[kCount];
    ReadRanks(ids, lane, rank, some_ids);
    ReadRanks(log_probs, lane, rank, some_log_probs);
    checker.Add(some_ids, some_log_probs, rank);
  };
  if constexpr (IsCut(kKind)) {
    size_t rank = 0;
    for (; rank + kRanksAtOnce <= slots; rank += kRanksAtOnce) {
      if (checker.AllCut()) return;
      add.template operator()<kRanksAtOnce>(rank);
    }
    VisitLastRanks(rank, slots - rank, add);
  } else {
    VisitRanks(slots, add);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#endif  // include guard of the target
