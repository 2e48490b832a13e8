// Log-probs of consecutive positions, group after group, whatever their layout.
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
#include "kernels/records/grouped_log_probs.h"
#include "kernels/records/record_view.h"
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

// Where the rows of a view's groups are. Groups are counted from the one that holds the stretch's
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
  // From this offset on, what comes kBytesAhead is no longer these rows: the next ones are
  // prefetched instead.
  size_t last_bytes_ahead_;
  uintptr_t to_next_;
};

// Values of 32 bits, token after token.
template <typename T>
class TokenMajorPositions {
 public:
  using Rows = TokenMajorRows<T>;

  TokenMajorPositions(std::span<const T> values, size_t slots)
      : values_(values.data()), slots_(slots) {}

  HWY_INLINE Rows Group(size_t /*group*/, size_t index, size_t first_lane, size_t count) {
    const T* values = values_ + index * slots_;
    if (count == kGroup) return Rows(values, slots_);
    // Every lane has to hold something.
    for (size_t lane = 0; lane < kGroup; ++lane) {
      const bool filled = lane >= first_lane && lane < first_lane + count;
      std::memcpy(whole_ + lane * slots_, values + (filled ? lane - first_lane : 0) * slots_,
                  slots_ * sizeof(T));
    }
    return Rows(whole_, slots_);
  }

 private:
  const T* values_;
  size_t slots_;
  T whole_[kGroup * kMaxTopK];
};

}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#endif  // include guard of the target
