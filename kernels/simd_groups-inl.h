// The groups of a segment's views, whatever their layout: 16 positions a group, the behaviour's and
// the current policy's values of a position in the same lane.
#if defined(SIS_KERNELS_SIMD_GROUPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SIS_KERNELS_SIMD_GROUPS_INL_H_
#undef SIS_KERNELS_SIMD_GROUPS_INL_H_
#else
#define SIS_KERNELS_SIMD_GROUPS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "hwy/highway.h"
#include "kernels/backend.h"
#include "kernels/simd_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {

inline constexpr size_t kGroup = kGroupPositions;

// Which of the kLanes lanes from `lane` on are among the count from first_lane on.
HWY_INLINE hn::Mask<Int32Tag> PositionLanes(size_t lane, size_t first_lane, size_t count) {
  const Int32Tag di;
  const Int32s lanes = hn::Iota(di, static_cast<int32_t>(lane));
  return hn::AndNot(hn::Lt(lanes, hn::Set(di, static_cast<int32_t>(first_lane))),
                    hn::Lt(lanes, hn::Set(di, static_cast<int32_t>(first_lane + count))));
}

// Where the rows of a view's groups are. Groups are counted from the one that holds the segment's
// first position.
template <typename T>
class GroupedRows {
 public:
  using Rows = RankMajorRows<T>;

  GroupedRows(const GroupedLogProbs& grouped, size_t slots)
      : rows_(reinterpret_cast<const T*>(grouped.rows.data())), slots_(slots) {}

  HWY_INLINE Rows Group(size_t group, size_t /*index*/, size_t /*first_lane*/, size_t /*count*/) {
    return Rows(rows_ + group * slots_ * kGroup, slots_);
  }

 private:
  const T* rows_;
  size_t slots_;
};

class TokenMajorPositions {
 public:
  using Rows = TokenMajorRows;

  TokenMajorPositions(std::span<const float> values, size_t slots)
      : values_(values.data()), slots_(slots) {}

  HWY_INLINE Rows Group(size_t /*group*/, size_t index, size_t first_lane, size_t count) {
    const float* values = values_ + index * slots_;
    if (count == kGroup) return Rows(values, slots_);
    // Every lane has to hold something.
    for (size_t lane = 0; lane < kGroup; ++lane) {
      const bool filled = lane >= first_lane && lane < first_lane + count;
      std::memcpy(whole_ + lane * slots_, values + (filled ? lane - first_lane : 0) * slots_,
                  slots_ * sizeof(float));
    }
    return Rows(whole_, slots_);
  }

 private:
  const float* values_;
  size_t slots_;
  float whole_[kGroup * kMaxTopK];
};

// Groups whose lanes are other positions than those of the groups they go with: copied to where
// they belong.
template <typename T>
class ShiftedRows {
 public:
  using Rows = RankMajorRows<float>;

  // The segment's first position is to be in first_lane of group 0.
  ShiftedRows(const GroupedLogProbs& grouped, size_t slots, size_t first_lane)
      : rows_(reinterpret_cast<const T*>(grouped.rows.data())),
        slots_(slots),
        groups_(grouped.rows.size_bytes() / (slots * kGroup * sizeof(T))),
        shift_(kGroup + grouped.first_lane - first_lane) {}

  HWY_INLINE Rows Group(size_t group, size_t /*index*/, size_t /*first_lane*/, size_t /*count*/) {
    // Lane 0 is lane shift_ % kGroup of group `left`; what is in no group is no position.
    const size_t left = group + shift_ / kGroup - 1;
    for (size_t rank = 0; rank < slots_; ++rank) {
      HWY_ALIGN float both[2 * kGroup] = {};
      if (left < groups_) Widen(left, rank, both);
      if (left + 1 < groups_) Widen(left + 1, rank, both + kGroup);
      std::memcpy(whole_ + rank * kGroup, both + shift_ % kGroup, kGroup * sizeof(float));
    }
    return Rows(whole_, slots_);
  }

 private:
  HWY_INLINE void Widen(size_t group, size_t rank, float* into) const {
    const T* row = rows_ + (group * slots_ + rank) * kGroup;
    for (size_t lane = 0; lane < kGroup; lane += kLanes) {
      hn::Store(LoadFloats(row + lane), FloatTag(), into + lane);
    }
  }

  const T* rows_;
  size_t slots_;
  size_t groups_;
  size_t shift_;  // in (0, 2 * kGroup)
  float whole_[kGroup * kMaxTopK];
};

// Calls `visit` with the rows of a grouped view.
template <class Visitor>
void VisitGrouped(const GroupedLogProbs& grouped, size_t slots, const Visitor& visit) {
  switch (grouped.encoding) {
    case LogProbEncoding::kFloat32: {
      GroupedRows<float> rows(grouped, slots);
      return visit(rows);
    }
    case LogProbEncoding::kFloat16: {
      GroupedRows<uint16_t> rows(grouped, slots);
      return visit(rows);
    }
    case LogProbEncoding::kFixed12:
      break;  // needs_scalar(): the callers have left these out
  }
}

// The same, brought to other lanes.
template <class Visitor>
void VisitShifted(const GroupedLogProbs& grouped, size_t slots, size_t first_lane,
                  const Visitor& visit) {
  switch (grouped.encoding) {
    case LogProbEncoding::kFloat32: {
      ShiftedRows<float> rows(grouped, slots, first_lane);
      return visit(rows);
    }
    case LogProbEncoding::kFloat16: {
      ShiftedRows<uint16_t> rows(grouped, slots, first_lane);
      return visit(rows);
    }
    case LogProbEncoding::kFixed12:
      break;  // needs_scalar(): the callers have left these out
  }
}

// Calls `visit` with the lane of the first position and the groups of both policies' log-probs,
// which must be GATHERED.
template <class Visitor>
void VisitGroups(const BehaviorView& behavior, const CurrentView& current, size_t slots,
                 const Visitor& visit) {
  const auto with_behavior = [&](auto& behavior_groups) {
    // Positions lie in lanes as the behaviour's do, or else as the current policy's.
    const size_t first_lane = !behavior.grouped_log_probs.empty()
                                  ? behavior.grouped_log_probs.first_lane
                                  : current.grouped_log_probs.first_lane;
    const auto with_current = [&](auto& current_groups) {
      visit(first_lane, behavior_groups, current_groups);
    };
    if (current.grouped_log_probs.empty()) {
      TokenMajorPositions groups(current.log_probs, slots);
      with_current(groups);
    } else if (current.grouped_log_probs.first_lane == first_lane) {
      VisitGrouped(current.grouped_log_probs, slots, with_current);
    } else {
      VisitShifted(current.grouped_log_probs, slots, first_lane, with_current);
    }
  };
  if (behavior.grouped_log_probs.empty()) {
    TokenMajorPositions groups(behavior.log_probs, slots);
    with_behavior(groups);
  } else {
    VisitGrouped(behavior.grouped_log_probs, slots, with_behavior);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#endif  // include guard of the target
