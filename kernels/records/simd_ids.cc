#include "kernels/records/simd_ids.h"

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/numerics/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/records/simd_ids.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/records/encoding.h"
#include "kernels/records/packed_row.h"
#if HWY_TARGET != HWY_SCALAR
#include "kernels/numerics/simd_math-inl.h"
#include "kernels/records/simd_rows-inl.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR

// The caller does it one by one.
bool PackIds(const RecordView&, size_t, const uint8_t*, int, std::byte*) { return false; }

#else

// The ids of one group, transposed to rows of 16.
class GroupRows {
 public:
  // `ids` are [16, slots], moved around like floats, by instructions that keep all bits.
  HWY_INLINE GroupRows(const int32_t* ids, size_t slots, const uint8_t* used_slots)
      : rows_(reinterpret_cast<const float*>(ids), slots) {
    for (size_t lane = 0; lane < kGroupPositions; ++lane) used_[lane] = used_slots[lane];
  }

  // Those of kCount ranks from `rank` on.
  template <size_t kCount>
  HWY_INLINE void Read(size_t rank, RowValues (&to)[kCount]) const {
    const Int32Tag di;
    for (size_t lane = 0; lane < kGroupPositions; lane += kLanes) {
      const Int32s used = hn::Load(di, used_ + lane);
      Floats ids[kCount];
      rows_.LoadLast(lane, rank, ids);
      for (size_t i = 0; i < kCount; ++i) {
        const auto in_use = hn::Gt(used, hn::Set(di, static_cast<int32_t>(rank + i)));
        hn::StoreU(hn::IfThenElseZero(in_use, hn::BitCast(di, ids[i])), di,
                   reinterpret_cast<int32_t*>(to[i].data()) + lane);
      }
    }
  }

 private:
  const TokenMajorRows rows_;
  HWY_ALIGN int32_t used_[kGroupPositions];
};

template <size_t kCount>
HWY_INLINE void PackRanks(const GroupRows& group, size_t rank, int bits, std::byte*& to) {
  RowValues rows[kCount];
  group.Read(rank, rows);
  for (const RowValues& row : rows) {
    PackRow(row, bits, {to, PackedRowBytes(bits)});
    to += PackedRowBytes(bits);
  }
}

bool PackIds(const RecordView& records, size_t slots, const uint8_t* used_slots, int bits,
             std::byte* to) {
  const size_t positions = records.sampled_ids.size();
  for (size_t first = 0; first < positions; first += kGroupPositions) {
    RowValues sampled;
    for (size_t lane = 0; lane < kGroupPositions; ++lane) {
      sampled[lane] = static_cast<uint32_t>(records.sampled_ids[first + lane]);
    }
    PackRow(sampled, bits, {to, PackedRowBytes(bits)});
    to += PackedRowBytes(bits);
    const GroupRows group(records.ids.data() + first * slots, slots, used_slots + first);
    size_t rank = 0;
    for (; rank + kRanksAtOnce <= slots; rank += kRanksAtOnce) {
      PackRanks<kRanksAtOnce>(group, rank, bits, to);
    }
    switch (slots - rank) {
      case 1:
        PackRanks<1>(group, rank, bits, to);
        break;
      case 2:
        PackRanks<2>(group, rank, bits, to);
        break;
      case 3:
        PackRanks<3>(group, rank, bits, to);
        break;
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

HWY_EXPORT(PackIds);

}  // namespace

bool PackIdsOnVectors(const RecordView& records, int slots, std::span<const uint8_t> used_slots,
                      int bits, std::span<std::byte> to) {
  return HWY_DYNAMIC_DISPATCH(PackIds)(records, static_cast<size_t>(slots), used_slots.data(), bits,
                                       to.data());
}

}  // namespace sis
#endif
