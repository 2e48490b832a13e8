#include "kernels/simd_validate.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd_validate.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/log_probs.h"
#if HWY_TARGET != HWY_SCALAR
#include "kernels/simd_groups-inl.h"
#include "kernels/simd_math-inl.h"
#include "kernels/simd_rows-inl.h"
#include "kernels/simd_slots-inl.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR

// The caller checks one by one.
bool RecordsAreValid(const RecordView&, size_t, int32_t, uint8_t*) { return false; }
bool SetsAreValid(const TopKSets&, int32_t) { return false; }

#else

// Fewer are checked sooner one by one than as a group of 16.
constexpr size_t kFewPositions = 4;

// The sets of kLanes positions, rank by rank: of records, or the current policy's own, where no
// token was sampled and equal log-probs may stand in any order.
enum class SetKind { kRecord, kCurrent };

template <SetKind kKind>
class SetChecker {
 public:
  // Of the current policy's sets.
  HWY_INLINE SetChecker() : SetChecker(hn::Zero(Int32Tag()), hn::Zero(FloatTag())) {}
  HWY_INLINE SetChecker(Int32s sampled_ids, Floats sampled_log_probs)
      : sampled_ids_(sampled_ids),
        sampled_log_probs_(sampled_log_probs),
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

  // The ids, as the bits of floats, and log-probs of `rank` and those after it.
  template <size_t kCount>
  HWY_INLINE void Add(const Floats (&ids)[kCount], const Floats (&log_probs)[kCount], size_t rank) {
    Int32s new_ids[kCount];
    for (size_t i = 0; i < kCount; ++i) new_ids[i] = hn::BitCast(Int32Tag(), ids[i]);
    CheckDistinct(new_ids, log_probs, rank);
    Floats exponentials[kCount];
    ExpOfEach(log_probs, exponentials);
    for (size_t i = 0; i < kCount; ++i) {
      AddSlot(new_ids[i], log_probs[i], static_cast<int32_t>(rank + i));
      mass_ = hn::Add(mass_, ZeroBelowRange(log_probs[i], exponentials[i]));
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

 private:
  static HWY_INLINE Mask AsMask(hn::Mask<Int32Tag> mask) {
    return hn::RebindMask(FloatTag(), mask);
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
    if constexpr (kKind == SetKind::kRecord) {
      const Mask tied = hn::And(used, hn::Eq(log_prob, last_log_prob_));
      const Mask ids_ascend = AsMask(hn::Gt(id, last_id_));
      valid_ = hn::AndNot(hn::AndNot(ids_ascend, tied), valid_);

      const hn::Mask<Int32Tag> sampled = hn::Eq(id, sampled_ids_);
      const auto differs = hn::Ne(hn::BitCast(di, log_prob), hn::BitCast(di, sampled_log_probs_));
      valid_ = hn::AndNot(AsMask(hn::And(sampled, differs)), valid_);
      ranks_ = hn::IfThenElse(sampled, hn::Set(di, rank), ranks_);
    } else if (rank == 0) {
      valid_ = hn::And(valid_, used);
    }

    lowest_id_ = hn::Min(lowest_id_, id);
    highest_id_ = hn::Max(highest_id_, id);
    last_id_ = id;
    last_log_prob_ = log_prob;
  }

  const Int32s sampled_ids_;
  const Floats sampled_log_probs_;
  Int32s ranks_;
  Int32s lowest_id_;
  Int32s highest_id_;
  Int32s last_id_;
  Floats last_log_prob_;
  Floats mass_;
  Mask valid_;
  HWY_ALIGN int32_t ids_[kMaxTopK * kLanes];
};

template <size_t kCount, SetKind kKind>
HWY_INLINE void CheckLast(const TokenMajorRows& ids, const TokenMajorRows& log_probs, size_t lane,
                          size_t rank, SetChecker<kKind>& checker) {
  Floats last_ids[kCount];
  Floats last_log_probs[kCount];
  ids.LoadLast(lane, rank, last_ids);
  log_probs.LoadLast(lane, rank, last_log_probs);
  checker.Add(last_ids, last_log_probs, rank);
}

template <SetKind kKind>
HWY_INLINE void CheckSlots(const TokenMajorRows& ids, const TokenMajorRows& log_probs, size_t lane,
                           size_t slots, SetChecker<kKind>& checker) {
  size_t rank = 0;
  for (; rank + kRanksAtOnce <= slots; rank += kRanksAtOnce) {
    const FourFloats id = ids.Load(lane, rank);
    const FourFloats log_prob = log_probs.Load(lane, rank);
    checker.Add({id.first.first, id.first.second, id.second.first, id.second.second},
                {log_prob.first.first, log_prob.first.second, log_prob.second.first,
                 log_prob.second.second},
                rank);
  }
  switch (slots - rank) {
    case 1:
      return CheckLast<1>(ids, log_probs, lane, rank, checker);
    case 2:
      return CheckLast<2>(ids, log_probs, lane, rank, checker);
    case 3:
      return CheckLast<3>(ids, log_probs, lane, rank, checker);
  }
}

bool RecordsAreValid(const RecordView& records, size_t slots, int32_t vocabulary_size,
                     uint8_t* ranks) {
  const size_t positions = records.sampled_ids.size();
  if (positions < kFewPositions) return false;
  // Ids are moved around like floats, by instructions that keep all bits.
  TokenMajorPositions ids({reinterpret_cast<const float*>(records.ids.data()), records.ids.size()},
                          slots);
  TokenMajorPositions log_probs(records.log_probs, slots);
  for (size_t index = 0; index < positions; index += kGroup) {
    // The last lanes of an incomplete group hold its first position again.
    const size_t count = std::min(kGroup, positions - index);
    HWY_ALIGN int32_t sampled_ids[kGroup];
    HWY_ALIGN float sampled_log_probs[kGroup];
    for (size_t lane = 0; lane < kGroup; ++lane) {
      const size_t position = index + (lane < count ? lane : 0);
      sampled_ids[lane] = records.sampled_ids[position];
      sampled_log_probs[lane] = records.sampled_log_probs[position];
    }
    const TokenMajorRows id_rows = ids.Group(0, index, 0, count);
    const TokenMajorRows log_prob_rows = log_probs.Group(0, index, 0, count);
    HWY_ALIGN int32_t group_ranks[kGroup];
    for (size_t lane = 0; lane < kGroup; lane += kLanes) {
      SetChecker<SetKind::kRecord> checker(hn::Load(Int32Tag(), sampled_ids + lane),
                                           hn::Load(FloatTag(), sampled_log_probs + lane));
      CheckSlots(id_rows, log_prob_rows, lane, slots, checker);
      if (!checker.AllValid(vocabulary_size)) return false;
      hn::Store(checker.ranks(), Int32Tag(), group_ranks + lane);
    }
    for (size_t lane = 0; lane < count; ++lane) {
      ranks[index + lane] = static_cast<uint8_t>(group_ranks[lane]);
    }
  }
  return true;
}

bool SetsAreValid(const TopKSets& sets, int32_t vocabulary_size) {
  const size_t slots = sets.slots;
  const size_t positions = sets.ids.size() / slots;
  if (positions < kFewPositions) return false;
  TokenMajorPositions ids({reinterpret_cast<const float*>(sets.ids.data()), sets.ids.size()},
                          slots);
  TokenMajorPositions log_probs(sets.log_probs, slots);
  for (size_t index = 0; index < positions; index += kGroup) {
    const size_t count = std::min(kGroup, positions - index);
    const TokenMajorRows id_rows = ids.Group(0, index, 0, count);
    const TokenMajorRows log_prob_rows = log_probs.Group(0, index, 0, count);
    for (size_t lane = 0; lane < kGroup; lane += kLanes) {
      SetChecker<SetKind::kCurrent> checker;
      CheckSlots(id_rows, log_prob_rows, lane, slots, checker);
      if (!checker.AllValid(vocabulary_size)) return false;
    }
  }
  return true;
}

#endif  // HWY_TARGET

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sis {
namespace {

HWY_EXPORT(RecordsAreValid);
HWY_EXPORT(SetsAreValid);

}  // namespace

bool RecordsAreQuicklySeenValid(const RecordView& records, int slots, int32_t vocabulary_size,
                                std::span<uint8_t> ranks) {
  return HWY_DYNAMIC_DISPATCH(RecordsAreValid)(records, static_cast<size_t>(slots), vocabulary_size,
                                               ranks.data());
}

bool TopKSetsAreQuicklySeenValid(const TopKSets& sets, int32_t vocabulary_size) {
  return HWY_DYNAMIC_DISPATCH(SetsAreValid)(sets, vocabulary_size);
}

}  // namespace sis
#endif
