#include "kernels/records/simd_ragged_slots.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/numerics/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/records/simd_ragged_slots.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#if HWY_TARGET != HWY_SCALAR
#include "kernels/numerics/simd_math-inl.h"
#include "kernels/records/simd_fixed12-inl.h"
#include "kernels/records/simd_rows-inl.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR

// The caller does it one by one.
bool EncodeRagged(const RowsToEncode&, const RaggedSlots&) { return false; }

#else

// The vectors of a group.
constexpr size_t kParts = kGroupPositions / kLanes;

#if HWY_TARGET <= HWY_AVX3
// Moves the lanes of a mask to the front.
class LanesToFront {
 public:
  explicit HWY_INLINE LanesToFront(hn::Mask<Uint32Tag> mask) : mask_(mask) {}
  HWY_INLINE Uint32s operator()(Uint32s values) const { return hn::Compress(values, mask_); }

 private:
  hn::Mask<Uint32Tag> mask_;
};
#else
// By the bits of a mask: its lanes in order. Highway's own table would be copied at each use by
// GCC.
struct LaneOrders {
  uint8_t lanes[size_t{1} << kLanes][kLanes];
};
constexpr LaneOrders kLaneOrders = [] {
  LaneOrders orders{};
  for (size_t bits = 0; bits < size_t{1} << kLanes; ++bits) {
    size_t next = 0;
    for (size_t lane = 0; lane < kLanes; ++lane) {
      if ((bits >> lane & 1) != 0) orders.lanes[bits][next++] = static_cast<uint8_t>(lane);
    }
  }
  return orders;
}();

class LanesToFront {
 public:
  explicit HWY_INLINE LanesToFront(hn::Mask<Uint32Tag> mask) {
    uint8_t bits[8];
    hn::StoreMaskBits(Uint32Tag(), mask, bits);
    const hn::Rebind<uint8_t, Int32Tag> bytes;
    lanes_ = hn::PromoteTo(Int32Tag(), hn::LoadU(bytes, kLaneOrders.lanes[bits[0]]));
  }
  HWY_INLINE Uint32s operator()(Uint32s values) const {
    return hn::TableLookupLanes(values, hn::IndicesFromVec(Uint32Tag(), lanes_));
  }

 private:
  Int32s lanes_;
};
#endif

class RaggedEncoder {
 public:
  HWY_INLINE RaggedEncoder(const RowsToEncode& rows, const RaggedSlots& to)
      : rows_(rows), to_(to), log_probs_(rows.log_probs, rows.slots), ids_(rows.ids, rows.slots) {
    const Int32Tag di;
    HWY_ALIGN float lowest[kGroupPositions];
    for (size_t lane = 0; lane < kGroupPositions; ++lane) {
      const uint16_t used = rows.used[lane];
      lowest[lane] = used == 0 ? 0x1p-6f : rows.log_probs[lane * rows.slots + used - 1];
    }
    for (size_t part = 0; part < kParts; ++part) {
      used_[part] =
          hn::PromoteTo(di, hn::LoadU(hn::Rebind<uint16_t, Int32Tag>(), rows.used + part * kLanes));
      multipliers_[part] = MultipliersFor(hn::Load(FloatTag(), lowest + part * kLanes));
      hn::StoreU(hn::BitCast(Uint32Tag(), Truncate(multipliers_[part])), Uint32Tag(),
                 to.multipliers + part * kLanes);
    }
  }

  HWY_INLINE void Encode() {
    const size_t slots = *std::max_element(rows_.used, rows_.used + kGroupPositions);
    const auto add = [this]<size_t kCount>(size_t rank) HWY_ATTR __attribute__((always_inline)) {
      AddRanks<kCount>(rank);
    };
    for (size_t rank = 0; rank < slots; rank += kRanksAtOnce) {
      if (LanesAt(rank) == 1) return AddRest(rank, slots);
      if (rank + kRanksAtOnce <= rows_.slots) {
        add.template operator()<kRanksAtOnce>(rank);
      } else {
        VisitLastRanks(rank, rows_.slots - rank, add);
      }
    }
  }

 private:
  HWY_INLINE hn::Mask<Int32Tag> UsedAt(size_t rank, size_t part) const {
    return hn::Gt(used_[part], hn::Set(Int32Tag(), static_cast<int32_t>(rank)));
  }
  HWY_INLINE size_t LanesAt(size_t rank) const {
    size_t lanes = 0;
    for (size_t part = 0; part < kParts; ++part) {
      lanes += hn::CountTrue(Int32Tag(), UsedAt(rank, part));
    }
    return lanes;
  }

  template <size_t kCount>
  HWY_INLINE void AddRanks(size_t rank) {
    const Uint32Tag du;
    Uint32s codes[kCount][kParts];
    Uint32s ids[kCount][kParts];
    for (size_t part = 0; part < kParts; ++part) {
      const size_t lane = part * kLanes;
      Floats values[kCount];
      Int32s own_ids[kCount];
      ReadRanks(log_probs_, lane, rank, values);
      ReadRanks(ids_, lane, rank, own_ids);
      const Floats steps = hn::Mul(multipliers_[part], Constant(0x1p-18f));
      for (size_t i = 0; i < kCount; ++i) {
        values[i] = CodesRoundedDown(values[i], multipliers_[part]);
        codes[i][part] = hn::BitCast(du, Truncate(values[i]));
        ids[i][part] = hn::BitCast(du, own_ids[i]);
        values[i] = Decode(values[i], steps);
      }
      if (to_.rounded != nullptr) {
        StoreTokenMajor(values, rows_.slots, to_.rounded + lane * rows_.slots + rank);
      }
    }
    for (size_t i = 0; i < kCount; ++i) {
      for (size_t part = 0; part < kParts; ++part) {
        const auto used = hn::RebindMask(du, UsedAt(rank + i, part));
        const LanesToFront to_front(used);
        hn::StoreU(to_front(codes[i][part]), du, to_.codes + written_);
        hn::StoreU(to_front(ids[i][part]), du, to_.ids + written_);
        written_ += hn::CountTrue(du, used);
      }
    }
  }

  // Ranks that one position alone uses.
  HWY_INLINE void AddRest(size_t begin, size_t end) {
    const auto lane =
        static_cast<size_t>(std::find(rows_.used, rows_.used + kGroupPositions, end) - rows_.used);
    const float* row = rows_.log_probs + lane * rows_.slots;
    const Floats multiplier = Constant(static_cast<float>(to_.multipliers[lane]));
    const Floats step = hn::Mul(multiplier, Constant(0x1p-18f));
    for (size_t rank = begin; rank < end; rank += kLanes) {
      const size_t count = std::min(kLanes, end - rank);
      HWY_ALIGN float values[kLanes] = {};
      std::memcpy(values, row + rank, count * sizeof(float));
      const Floats codes = CodesRoundedDown(hn::Load(FloatTag(), values), multiplier);
      hn::StoreU(hn::BitCast(Uint32Tag(), Truncate(codes)), Uint32Tag(), to_.codes + written_);
      std::memcpy(to_.ids + written_, rows_.ids + lane * rows_.slots + rank,
                  count * sizeof(uint32_t));
      written_ += count;
      if (to_.rounded == nullptr) continue;
      hn::Store(Decode(codes, step), FloatTag(), values);
      std::memcpy(to_.rounded + lane * rows_.slots + rank, values, count * sizeof(float));
    }
  }

  const RowsToEncode& rows_;
  const RaggedSlots& to_;
  const TokenMajorRows<float, RowMemory::kNear> log_probs_;
  const TokenMajorRows<int32_t, RowMemory::kNear> ids_;
  Int32s used_[kParts];
  Floats multipliers_[kParts];
  size_t written_ = 0;
};

bool EncodeRagged(const RowsToEncode& rows, const RaggedSlots& to) {
  RaggedEncoder(rows, to).Encode();
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

HWY_EXPORT(EncodeRagged);

}  // namespace

bool EncodeRaggedOnVectors(const RowsToEncode& rows, const RaggedSlots& to) {
  return HWY_DYNAMIC_DISPATCH(EncodeRagged)(rows, to);
}

}  // namespace sis
#endif
