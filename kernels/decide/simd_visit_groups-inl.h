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
#include "kernels/records/simd_groups-inl.h"
#include "kernels/records/simd_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {

// Halves are transposed from token-major to rank-major: 16 positions' rows of K become K rows
// of 16.

// Vectors of eight rows; block b of vector j becomes what the eight rows have at 8 b + j. Members,
// not an array: compilers keep them in registers without being told to unroll.
template <class V>
struct EightVectors {
  V v0, v1, v2, v3, v4, v5, v6, v7;
};

template <class D, class V = hn::Vec<D>>
HWY_INLINE Pair<V> Interleave(D d, V a, V b) {
  return {hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)};
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE EightVectors<V> TransposeBlocks(D d, const EightVectors<V>& rows) {
  const Pair<V> r04 = Interleave(d, rows.v0, rows.v4);
  const Pair<V> r15 = Interleave(d, rows.v1, rows.v5);
  const Pair<V> r26 = Interleave(d, rows.v2, rows.v6);
  const Pair<V> r37 = Interleave(d, rows.v3, rows.v7);
  const Pair<V> even01 = Interleave(d, r04.first, r26.first);  // columns 0, 1 of rows 0, 2, 4, 6
  const Pair<V> even45 = Interleave(d, r04.second, r26.second);
  const Pair<V> odd01 = Interleave(d, r15.first, r37.first);
  const Pair<V> odd45 = Interleave(d, r15.second, r37.second);
  const Pair<V> c01 = Interleave(d, even01.first, odd01.first);
  const Pair<V> c23 = Interleave(d, even01.second, odd01.second);
  const Pair<V> c45 = Interleave(d, even45.first, odd45.first);
  const Pair<V> c67 = Interleave(d, even45.second, odd45.second);
  return {c01.first, c01.second, c23.first, c23.second,
          c45.first, c45.second, c67.first, c67.second};
}

// Stores one column of every block, eight lanes from each vector, as rows of 16.
template <size_t kBlocks, class V>
HWY_INLINE void StoreColumns(V lower, V upper, uint16_t* HWY_RESTRICT into) {
  const hn::FixedTag<uint16_t, 8 * kBlocks> d;
  constexpr size_t kBetween = 8 * kGroupPositions;
  if constexpr (kBlocks == 1) {
#if HWY_TARGET <= HWY_AVX2
    // In one go, as it is read: what two stores wrote would be waited for.
    const hn::FixedTag<uint16_t, kGroupPositions> d2;
    hn::StoreU(hn::Combine(d2, upper, lower), d2, into);
#else
    hn::StoreU(lower, d, into);
    hn::StoreU(upper, d, into + 8);
#endif
  } else {
    const V even = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(upper), lower);
    const V odd = hn::OddEvenBlocks(upper, hn::SwapAdjacentBlocks(lower));
    if constexpr (kBlocks == 2) {
      hn::StoreU(even, d, into);
      hn::StoreU(odd, d, into + kBetween);
    } else {
      const hn::Half<decltype(d)> dh;
      hn::StoreU(hn::LowerHalf(dh, even), dh, into);
      hn::StoreU(hn::LowerHalf(dh, odd), dh, into + kBetween);
      hn::StoreU(hn::UpperHalf(dh, even), dh, into + 2 * kBetween);
      hn::StoreU(hn::UpperHalf(dh, odd), dh, into + 3 * kBetween);
    }
  }
}

// The ranks [rank, rank + 8 * kBlocks) of eight lanes.
template <size_t kBlocks, class RowOf>
HWY_INLINE auto TransposeEightLanes(const RowOf& row, size_t lane, size_t rank) {
  const hn::FixedTag<uint16_t, 8 * kBlocks> d;
  using V = hn::Vec<decltype(d)>;
  return TransposeBlocks(
      d, EightVectors<V>{hn::LoadU(d, row(lane) + rank), hn::LoadU(d, row(lane + 1) + rank),
                         hn::LoadU(d, row(lane + 2) + rank), hn::LoadU(d, row(lane + 3) + rank),
                         hn::LoadU(d, row(lane + 4) + rank), hn::LoadU(d, row(lane + 5) + rank),
                         hn::LoadU(d, row(lane + 6) + rank), hn::LoadU(d, row(lane + 7) + rank)});
}

// The ranks [rank, rank + 8 * kBlocks). row(lane) is where a position's values begin.
template <size_t kBlocks, class RowOf>
HWY_INLINE void TransposeTile(const RowOf& row, size_t rank, uint16_t* HWY_RESTRICT into) {
  const auto lower = TransposeEightLanes<kBlocks>(row, 0, rank);
  const auto upper = TransposeEightLanes<kBlocks>(row, 8, rank);
  uint16_t* const first = into + rank * kGroupPositions;
  StoreColumns<kBlocks>(lower.v0, upper.v0, first);
  StoreColumns<kBlocks>(lower.v1, upper.v1, first + kGroupPositions);
  StoreColumns<kBlocks>(lower.v2, upper.v2, first + 2 * kGroupPositions);
  StoreColumns<kBlocks>(lower.v3, upper.v3, first + 3 * kGroupPositions);
  StoreColumns<kBlocks>(lower.v4, upper.v4, first + 4 * kGroupPositions);
  StoreColumns<kBlocks>(lower.v5, upper.v5, first + 5 * kGroupPositions);
  StoreColumns<kBlocks>(lower.v6, upper.v6, first + 6 * kGroupPositions);
  StoreColumns<kBlocks>(lower.v7, upper.v7, first + 7 * kGroupPositions);
}

// All ranks, in tiles as large as vectors allow; the last one ends with the row, and overlaps the
// one before it. False if the rows are too short for a tile.
template <size_t kBlocks, class RowOf>
HWY_INLINE bool TransposeInTiles(const RowOf& row, size_t slots, uint16_t* into) {
  constexpr size_t kRanks = 8 * kBlocks;
  if (kRanks > slots || kRanks > hn::MaxLanes(hn::ScalableTag<uint16_t>())) return false;
  for (size_t rank = 0; rank + kRanks <= slots; rank += kRanks) {
    TransposeTile<kBlocks>(row, rank, into);
  }
  if (slots % kRanks != 0) TransposeTile<kBlocks>(row, slots - kRanks, into);
  return true;
}

// Writes ranks 0 to slots - 1 of 16 positions, one a lane. into: [slots, 16]. Compiled once, not
// into each kernel that calls it.
template <class RowOf>
HWY_NOINLINE void TransposeHalves(const RowOf& row, size_t slots, uint16_t* HWY_RESTRICT into) {
#if HWY_TARGET <= HWY_AVX3
  if (TransposeInTiles<4>(row, slots, into)) return;
#endif
#if HWY_TARGET <= HWY_AVX2
  if (TransposeInTiles<2>(row, slots, into)) return;
#endif
  if (TransposeInTiles<1>(row, slots, into)) return;
  for (size_t lane = 0; lane < kGroupPositions; ++lane) {
    for (size_t rank = 0; rank < slots; ++rank) {
      into[rank * kGroupPositions + lane] = row(lane)[rank];
    }
  }
}

// Float16 values, token after token, transposed into groups. Each is read once.
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

// Calls `visit` with the lane of the first position and the groups of both policies' log-probs,
// which must be GATHERED; it is compiled once for each pair of layouts. `next` is where the
// behaviour's rows are that will be visited next; may be null.
template <class Visitor>
void VisitGroups(const BehaviorView& behavior, const CurrentView& current, size_t slots,
                 const std::byte* next, const Visitor& visit) {
  if (const RaggedLogProbs& ragged = behavior.ragged_log_probs; !ragged.empty()) {
    RaggedPositions positions(ragged);
    const auto with_current = [&](auto values) {
      RaggedCurrent current_groups(values, current.counts, slots, ragged);
      visit(ragged.first_lane, positions, current_groups);
    };
    return current.float16_log_probs.empty() ? with_current(current.log_probs)
                                             : with_current(current.float16_log_probs);
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
