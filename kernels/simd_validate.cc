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
#include "kernels/simd_set_checker-inl.h"
#include "kernels/simd_slots-inl.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR

// The caller checks one by one.
bool AreValid(const BehaviorView&, const CurrentView&, size_t) { return false; }
bool RecordsAreValid(const RecordView&, size_t, int32_t, uint8_t*) { return false; }

#else

// Fewer are checked sooner one by one than as a group of 16.
constexpr size_t kFewPositions = 4;

// Covered masses, and whether every log-prob so far is valid.
class Checker {
 public:
  HWY_INLINE Checker() : mass_(hn::Zero(FloatTag())), valid_(hn::Eq(mass_, mass_)) {}

  HWY_INLINE void Add(FourFloats behavior, FourFloats current) {
    const FourFloats usable = {{Usable(behavior.first.first, current.first.first),
                                Usable(behavior.first.second, current.first.second)},
                               {Usable(behavior.second.first, current.second.first),
                                Usable(behavior.second.second, current.second.second)}};
    const FourFloats e = ExpInRange(usable);
    AddMass(usable.first.first, e.first.first);
    AddMass(usable.first.second, e.first.second);
    AddMass(usable.second.first, e.second.first);
    AddMass(usable.second.second, e.second.second);
  }
  HWY_INLINE void Add(Floats behavior, Floats current) {
    const Floats usable = Usable(behavior, current);
    AddMass(usable, ExpInRange(usable));
  }
  HWY_INLINE Mask Valid() const {
    return hn::And(valid_, hn::Le(mass_, Constant(1.0f + kRoundingSlack)));
  }

 private:
  // -inf in unused slots, where anything is valid.
  HWY_INLINE Floats Usable(Floats behavior, Floats current) {
    const Floats minus_infinity = Constant(kMinusInfinity);
    const Floats usable = hn::IfThenElse(hn::Ne(behavior, minus_infinity), current, minus_infinity);
    valid_ = hn::And(valid_, hn::Le(usable, Constant(kRoundingSlack)));  // not so for NaN
    return usable;
  }
  HWY_INLINE void AddMass(Floats log_prob, Floats exponential) {
    mass_ = hn::Add(mass_, ZeroBelowRange(log_prob, exponential));
  }

  Floats mass_;
  Mask valid_;
};

template <size_t kCount, class BehaviorRows, class CurrentRows>
HWY_INLINE void AddLast(const BehaviorRows& behavior, const CurrentRows& current, size_t lane,
                        size_t rank, Checker& checker) {
  Floats behavior_rows[kCount];
  Floats current_rows[kCount];
  behavior.LoadLast(lane, rank, behavior_rows);
  current.LoadLast(lane, rank, current_rows);
  for (size_t i = 0; i < kCount; ++i) checker.Add(behavior_rows[i], current_rows[i]);
}

template <class BehaviorRows, class CurrentRows>
HWY_INLINE Mask ValidLanes(const BehaviorRows& behavior, const CurrentRows& current, size_t lane,
                           size_t slots) {
  Checker checker;
  size_t rank = 0;
  for (; rank + kRanksAtOnce <= slots; rank += kRanksAtOnce) {
    checker.Add(behavior.Load(lane, rank), current.Load(lane, rank));
  }
  switch (slots - rank) {
    case 1:
      AddLast<1>(behavior, current, lane, rank, checker);
      break;
    case 2:
      AddLast<2>(behavior, current, lane, rank, checker);
      break;
    case 3:
      AddLast<3>(behavior, current, lane, rank, checker);
      break;
  }
  return checker.Valid();
}

// From so many slots on, rows are looked at by themselves first.
constexpr size_t kLongRow = 2 * kGroup;

// Whether a row is valid whichever of its slots are used, and in whatever order it is summed up:
// all are log-probs, and their sum is below the limit by far more than the rounding of 254 sums,
// 2^-16 of it. Unlike the exact test this needs neither the behaviour's values nor the positions
// in lanes.
HWY_INLINE bool IsSurelyValid(const float* row, size_t slots) {
  const FloatTag d;
  const Floats lowest = Constant(-87.0f);
  Floats sum = hn::Zero(d);
  Mask valid = hn::Eq(sum, sum);
  // The last one ends with the row, and leaves out what the one before it has.
  const auto load = [&](size_t first) HWY_ATTR {
    if (first + kLanes <= slots) return hn::LoadU(d, row + first);
    const size_t again = first + kLanes - slots;
    return hn::IfThenElse(hn::FirstN(d, again), lowest, hn::LoadU(d, row + slots - kLanes));
  };
  const auto take = [&](size_t first) HWY_ATTR {
    const Floats log_probs = load(first);
    valid = hn::And(valid, hn::Le(log_probs, Constant(kRoundingSlack)));  // not so for NaN
    return hn::Max(log_probs, lowest);
  };
  size_t first = 0;
  for (; first + 3 * kLanes < slots; first += 4 * kLanes) {
    const FourFloats e = ExpInRange(FourFloats{
        {take(first), take(first + kLanes)}, {take(first + 2 * kLanes), take(first + 3 * kLanes)}});
    sum = hn::Add(sum, hn::Add(hn::Add(e.first.first, e.first.second),
                               hn::Add(e.second.first, e.second.second)));
  }
  for (; first < slots; first += kLanes) sum = hn::Add(sum, ExpInRange(take(first)));
  constexpr float kSure = 1.0f + kRoundingSlack - 0x1p-10f;
  return hn::AllTrue(d, valid) && hn::GetLane(hn::SumOfLanes(d, sum)) <= kSure;
}

HWY_INLINE bool AreSurelyValid(std::span<const float> rows, size_t slots) {
  for (size_t first = 0; first < rows.size(); first += slots) {
    if (!IsSurelyValid(rows.data() + first, slots)) return false;
  }
  return true;
}

bool AreValid(const BehaviorView& behavior, const CurrentView& current, size_t slots) {
  const size_t positions = current.sampled_log_probs.size();
  if (slots >= kLongRow && current.grouped_log_probs.empty() &&
      AreSurelyValid(current.log_probs, slots)) {
    return true;
  }
  bool valid = true;
  VisitGroups(behavior, current, slots,
              [&](size_t first_lane, auto& behavior_groups, auto& current_groups) HWY_ATTR {
                const FloatTag d;
                size_t index = 0;
                for (size_t group = 0; valid && index < positions; ++group) {
                  const size_t count = std::min(kGroup - first_lane, positions - index);
                  const auto behavior_rows = behavior_groups.Group(group, index, first_lane, count);
                  const auto current_rows = current_groups.Group(group, index, first_lane, count);
                  for (size_t lane = 0; lane < kGroup; lane += kLanes) {
                    const Mask checked = hn::RebindMask(d, PositionLanes(lane, first_lane, count));
                    const Mask invalid =
                        hn::AndNot(ValidLanes(behavior_rows, current_rows, lane, slots), checked);
                    valid = valid && hn::AllFalse(d, invalid);
                  }
                  index += count;
                  first_lane = 0;
                }
              });
  return valid;
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

#endif  // HWY_TARGET

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sis {
namespace {

HWY_EXPORT(AreValid);
HWY_EXPORT(RecordsAreValid);

}  // namespace

bool GatheredLogProbsAreValid(const BehaviorView& behavior, const CurrentView& current, int slots) {
  return HWY_DYNAMIC_DISPATCH(AreValid)(behavior, current, static_cast<size_t>(slots));
}

bool RecordsAreQuicklySeenValid(const RecordView& records, int slots, int32_t vocabulary_size,
                                std::span<uint8_t> ranks) {
  return HWY_DYNAMIC_DISPATCH(RecordsAreValid)(records, static_cast<size_t>(slots), vocabulary_size,
                                               ranks.data());
}

}  // namespace sis
#endif
