#include "kernels/simd_validate.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

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
#endif

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR

// The caller checks one by one.
bool AreValid(const BehaviorView&, const CurrentView&, size_t) { return false; }

#else

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

bool AreValid(const BehaviorView& behavior, const CurrentView& current, size_t slots) {
  const size_t positions = current.sampled_log_probs.size();
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

#endif  // HWY_TARGET

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sis {
namespace {

HWY_EXPORT(AreValid);

}  // namespace

bool GatheredLogProbsAreValid(const BehaviorView& behavior, const CurrentView& current, int slots) {
  return HWY_DYNAMIC_DISPATCH(AreValid)(behavior, current, static_cast<size_t>(slots));
}

}  // namespace sis
#endif
