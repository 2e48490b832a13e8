// The groups of both policies' log-probs, whatever their layouts: the two values of a slot stand in
// the same lane.
#if defined(SIS_KERNELS_SIMD_VISIT_GROUPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SIS_KERNELS_SIMD_VISIT_GROUPS_INL_H_
#undef SIS_KERNELS_SIMD_VISIT_GROUPS_INL_H_
#else
#define SIS_KERNELS_SIMD_VISIT_GROUPS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <span>

#include "hwy/highway.h"
#include "kernels/decide/backend.h"
#include "kernels/decide/simd_ragged_slots-inl.h"
#include "kernels/decide/simd_transpose_halves-inl.h"
#include "kernels/records/simd_groups-inl.h"
#include "kernels/records/simd_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {

// Of a group that comes soon, given where this one's values begin: the lines that hold the first
// ranks.
template <typename T>
HWY_INLINE void PrefetchFirstRanks(const T* values, size_t slots) {
  constexpr size_t kGroupsAhead = 2;
  for (size_t i = kGroupsAhead * kGroup; i < (kGroupsAhead + 1) * kGroup; ++i) {
    PrefetchAhead(values + i * slots, 0);
  }
}

// Float32 values, token after token, of which few are read.
class FirstRanks {
 public:
  using Positions = TokenMajorPositions<float, RowMemory::kNear>;

  FirstRanks(std::span<const float> values, size_t slots)
      : values_(values.data()), slots_(slots), positions_(values, slots) {}

  HWY_INLINE Positions::Rows Group(size_t group, size_t index, size_t first_lane, size_t count) {
    PrefetchFirstRanks(values_ + index * slots_, slots_);
    return positions_.Group(group, index, first_lane, count);
  }

 private:
  const float* values_;
  size_t slots_;
  Positions positions_;
};

// Float16 values, token after token, transposed into groups. Each is read once.
class TransposedHalves {
 public:
  using Rows = RankMajorRows<LogProbEncoding::kFloat16, RowMemory::kNear>;

  TransposedHalves(std::span<const uint16_t> values, size_t slots)
      : values_(values.data()), slots_(slots), ranks_(slots) {}

  // Of the next group no more will be read.
  void ReadOnly(size_t ranks) { ranks_ = ranks; }

  HWY_INLINE Rows Group(size_t /*group*/, size_t index, size_t first_lane, size_t count) {
    const uint16_t* values = values_ + index * slots_;
    if (HWY_LIKELY(count == kGroup)) {
      if (ranks_ == slots_) {
        const auto* ahead = reinterpret_cast<const std::byte*>(values);
        for (size_t byte = 0; byte < kGroup * slots_ * sizeof(uint16_t); byte += 64) {
          PrefetchAhead(ahead + byte);
        }
      } else {
        PrefetchFirstRanks(values, slots_);
      }
      TransposeHalves(AllLanes{values, slots_}, ranks_, rows_);
    } else {
      TransposeHalves(SomeLanes{values, slots_, first_lane, count}, ranks_, rows_);
    }
    return Rows(reinterpret_cast<const std::byte*>(rows_));
  }

 private:
  // Where the values in a lane begin.
  struct AllLanes {
    const uint16_t* values;
    size_t slots;

    HWY_INLINE const uint16_t* operator()(size_t lane) const { return values + lane * slots; }
  };
  // Every lane has to hold something.
  struct SomeLanes {
    const uint16_t* values;
    size_t slots;
    size_t first_lane;
    size_t count;

    HWY_INLINE const uint16_t* operator()(size_t lane) const {
      const bool filled = lane >= first_lane && lane < first_lane + count;
      return values + (filled ? lane - first_lane : 0) * slots;
    }
  };

  const uint16_t* values_;
  size_t slots_;
  size_t ranks_;
  HWY_ALIGN uint16_t rows_[kGroup * kMaxTopK];
};

// Before the next group of current values is read.
template <class BehaviorRows, class Current>
HWY_INLINE void LimitRanks(const BehaviorRows& /*behavior*/, Current& /*current*/) {}
HWY_INLINE void LimitRanks(const RaggedRows& behavior, TransposedHalves& current) {
  current.ReadOnly(behavior.longest());
}

// Calls `visit` with the lane of the first position and the groups of both policies' log-probs,
// which must be GATHERED; it is compiled once for each pair of layouts. `next` is where the
// behaviour's rows are that will be visited next; may be null.
template <class Visitor>
void VisitGroups(const BehaviorView& behavior, const CurrentView& current, size_t slots,
                 const std::byte* next, const Visitor& visit) {
  if (const RaggedLogProbs& ragged = behavior.ragged_log_probs; !ragged.empty()) {
    RaggedPositions positions(ragged);
    if (current.float16_log_probs.empty()) {
      FirstRanks current_groups(current.log_probs, slots);
      return visit(ragged.first_lane, positions, current_groups);
    }
    TransposedHalves current_groups(current.float16_log_probs, slots);
    return visit(ragged.first_lane, positions, current_groups);
  }
  const auto with_behavior = [&](size_t first_lane, auto behavior_groups) {
    if (current.float16_log_probs.empty()) {
      TokenMajorPositions current_groups(current.log_probs, slots);
      visit(first_lane, behavior_groups, current_groups);
    } else {
      TransposedHalves current_groups(current.float16_log_probs, slots);
      visit(first_lane, behavior_groups, current_groups);
    }
  };
  const GroupedLogProbs& grouped = behavior.grouped_log_probs;
  if (grouped.empty()) return with_behavior(0, TokenMajorPositions(behavior.log_probs, slots));
  VisitEncoding(grouped.encoding, [&]<LogProbEncoding kEncoding>() {
    with_behavior(grouped.first_lane, GroupedRows<kEncoding>(grouped, slots, next));
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#endif  // include guard of the target
