// The groups of a segment's views, whatever their layout: 16 positions a group, the behaviour's and
// the current policy's values of a position in the same lane.
#if defined(SIS_KERNELS_SIMD_GROUPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SIS_KERNELS_SIMD_GROUPS_INL_H_
#undef SIS_KERNELS_SIMD_GROUPS_INL_H_
#else
#define SIS_KERNELS_SIMD_GROUPS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "hwy/highway.h"
#include "kernels/decide/backend.h"
#include "kernels/decide/simd_transpose_halves-inl.h"
#include "kernels/records/simd_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {

inline constexpr size_t kGroup = kGroupPositions;

// Consecutive positions of one group.
struct GroupPart {
  size_t index;       // of the first one among all positions
  size_t first_lane;  // where it is in the group
  size_t count;
};

// Which of the kLanes lanes from `lane` on are among the count from first_lane on.
HWY_INLINE hn::Mask<Int32Tag> PositionLanes(size_t lane, size_t first_lane, size_t count) {
  const Int32Tag di;
  const Int32s lanes = hn::Iota(di, static_cast<int32_t>(lane));
  return hn::AndNot(hn::Lt(lanes, hn::Set(di, static_cast<int32_t>(first_lane))),
                    hn::Lt(lanes, hn::Set(di, static_cast<int32_t>(first_lane + count))));
}

// Where the rows of a view's groups are. Groups are counted from the one that holds the segment's
// first position.
template <LogProbEncoding kEncoding>
class GroupedRows {
 public:
  using Rows = RankMajorRows<kEncoding>;

  // `next`: where the rows begin that will be read after these, or null.
  GroupedRows(const GroupedLogProbs& grouped, size_t slots, const std::byte* next = nullptr)
      : groups_(grouped.rows.data()),
        group_bytes_(GroupBytes(kEncoding, slots)),
        last_bytes_ahead_(grouped.rows.size() - std::min(grouped.rows.size(), kBytesAhead)),
        to_next_(next == nullptr ? kBytesAhead
                                 : reinterpret_cast<uintptr_t>(next) -
                                       reinterpret_cast<uintptr_t>(groups_) - last_bytes_ahead_) {}

  HWY_INLINE Rows Group(size_t group, size_t /*index*/, size_t /*first_lane*/, size_t /*count*/) {
    const size_t offset = group * group_bytes_;
    return Rows(groups_ + offset, offset < last_bytes_ahead_ ? kBytesAhead : to_next_);
  }

 private:
  const std::byte* groups_;
  size_t group_bytes_;
  // The rows of a page are few: from this offset on, what comes kBytesAhead is the next rows'.
  size_t last_bytes_ahead_;
  uintptr_t to_next_;
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

// Halves, token after token, brought into groups: each is read once.
class TransposedHalves {
 public:
  using Rows = RankMajorRows<LogProbEncoding::kFloat16, RowMemory::kNear>;

  TransposedHalves(std::span<const uint16_t> values, size_t slots)
      : values_(values.data()), slots_(slots) {}

  HWY_INLINE Rows Group(size_t /*group*/, size_t index, size_t first_lane, size_t count) {
    const uint16_t* values = values_ + index * slots_;
    if (HWY_LIKELY(count == kGroup)) {
      const auto* ahead = reinterpret_cast<const std::byte*>(values);
      for (size_t byte = 0; byte < kGroup * slots_ * sizeof(uint16_t); byte += 64) {
        PrefetchAhead(ahead + byte);
      }
      TransposeHalves(AllLanes{values, slots_}, slots_, rows_);
    } else {
      TransposeHalves(SomeLanes{values, slots_, first_lane, count}, slots_, rows_);
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
  HWY_ALIGN uint16_t rows_[kGroup * kMaxTopK];
};

// Groups that are encoded otherwise than those they go with, or whose lanes are other positions:
// copied to where they belong, as floats.
class CopiedRows {
 public:
  using Rows = RankMajorRows<LogProbEncoding::kFloat32, RowMemory::kNear>;

  // The segment's first position is to be in first_lane of group 0.
  CopiedRows(const GroupedLogProbs& grouped, size_t slots, size_t first_lane)
      : grouped_(grouped),
        slots_(slots),
        group_bytes_(GroupBytes(grouped.encoding, slots)),
        groups_(grouped.rows.size() / group_bytes_),
        shift_(kGroup + grouped.first_lane - first_lane) {}

  HWY_INLINE Rows Group(size_t group, size_t /*index*/, size_t /*first_lane*/, size_t /*count*/) {
    switch (grouped_.encoding) {
      case LogProbEncoding::kFloat32:
        Copy<LogProbEncoding::kFloat32>(group);
        break;
      case LogProbEncoding::kFloat16:
        Copy<LogProbEncoding::kFloat16>(group);
        break;
      case LogProbEncoding::kFixed12:
        Copy<LogProbEncoding::kFixed12>(group);
        break;
    }
    return Rows(reinterpret_cast<const std::byte*>(whole_));
  }

 private:
  // Lane 0 becomes lane shift_ % kGroup of group `left`. What is in no group is no position.
  template <LogProbEncoding kEncoding>
  HWY_NOINLINE void Copy(size_t group) {
    const size_t left = group + shift_ / kGroup - 1;
    const size_t from = shift_ % kGroup;
    CopyLanes<kEncoding>(left, from, kGroup, whole_);
    if (from > 0) CopyLanes<kEncoding>(left + 1, 0, from, whole_ + kGroup - from);
  }

  // Lanes [begin, end) of every rank of a group.
  template <LogProbEncoding kEncoding>
  HWY_INLINE void CopyLanes(size_t group, size_t begin, size_t end, float* into) const {
    if (group >= groups_) {  // also to the left of the first, as it wraps around
      for (size_t rank = 0; rank < slots_; ++rank) {
        std::fill_n(into + rank * kGroup, end - begin, 0.0f);
      }
      return;
    }
    const std::byte* first = grouped_.rows.data() + group * group_bytes_;
    const RowReader<kEncoding> reader(first);
    for (size_t rank = 0; rank < slots_; ++rank) {
      const std::byte* row = first + (LeadingRows(kEncoding) + rank) * RowBytes(kEncoding);
      HWY_ALIGN float values[kGroup];
      for (size_t lane = 0; lane < kGroup; lane += kLanes) {
        hn::Store(reader.Read(row, lane), FloatTag(), values + lane);
      }
      std::memcpy(into + rank * kGroup, values + begin, (end - begin) * sizeof(float));
    }
  }

  const GroupedLogProbs grouped_;
  size_t slots_;
  size_t group_bytes_;
  size_t groups_;
  size_t shift_;  // in (0, 2 * kGroup)
  float whole_[kGroup * kMaxTopK];
};

// Calls `visit` with the lane of the first position and the groups of both policies' log-probs,
// which must be GATHERED. Only the pairs of layouts that matter read the memory directly: each is
// compiled on its own. `next` is where the behaviour's rows are that will be visited next; may be
// null.
template <class Visitor>
void VisitGroups(const BehaviorView& behavior, const CurrentView& current, size_t slots,
                 const std::byte* next, const Visitor& visit) {
  // Positions lie in lanes as the behaviour's do, or else as the current policy's.
  const size_t first_lane = !behavior.grouped_log_probs.empty()
                                ? behavior.grouped_log_probs.first_lane
                                : current.grouped_log_probs.first_lane;
  const auto with_behavior = [&](auto& behavior_groups) {
    if (!current.float16_log_probs.empty()) {
      TransposedHalves current_groups(current.float16_log_probs, slots);
      visit(first_lane, behavior_groups, current_groups);
    } else if (current.grouped_log_probs.empty()) {
      TokenMajorPositions current_groups(current.log_probs, slots);
      visit(first_lane, behavior_groups, current_groups);
    } else {
      CopiedRows current_groups(current.grouped_log_probs, slots, first_lane);
      visit(first_lane, behavior_groups, current_groups);
    }
  };
  if (behavior.grouped_log_probs.empty()) {
    TokenMajorPositions behavior_groups(behavior.log_probs, slots);
    return with_behavior(behavior_groups);
  }
  const auto visit_encoding = [&]<LogProbEncoding kEncoding>() {
    GroupedRows<kEncoding> behavior_groups(behavior.grouped_log_probs, slots, next);
    if (!current.grouped_log_probs.empty() && current.grouped_log_probs.encoding == kEncoding &&
        current.grouped_log_probs.first_lane == first_lane) {
      GroupedRows<kEncoding> current_groups(current.grouped_log_probs, slots);
      visit(first_lane, behavior_groups, current_groups);
    } else {
      with_behavior(behavior_groups);
    }
  };
  switch (behavior.grouped_log_probs.encoding) {
    case LogProbEncoding::kFloat32:
      return visit_encoding.template operator()<LogProbEncoding::kFloat32>();
    case LogProbEncoding::kFloat16:
      return visit_encoding.template operator()<LogProbEncoding::kFloat16>();
    case LogProbEncoding::kFixed12:
      return visit_encoding.template operator()<LogProbEncoding::kFixed12>();
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#endif  // include guard of the target
