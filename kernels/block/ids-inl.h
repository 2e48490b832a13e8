// Ids of two to four bytes in vectors.
#if defined(SIS_KERNELS_IDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SIS_KERNELS_IDS_INL_H_
#undef SIS_KERNELS_IDS_INL_H_
#else
#define SIS_KERNELS_IDS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/block/block.h"
#include "kernels/numerics/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {

// Number of bytes that LoadIds and StoreIds access.
template <size_t kIdBytes>
inline constexpr size_t kIdVectorBytes = kIdBytes == 3 ? 3 * kLanes + 4 : kIdBytes* kLanes;
static_assert(kIdVectorBytes<4> <= kBlockSlack);

// Loads 16 bytes per four lanes from addresses 12 bytes apart, for ids of three bytes.
template <class D8>
HWY_INLINE hn::Vec<D8> LoadTwelves(D8 d, const uint8_t* from) {
  if constexpr (hn::MaxLanes(D8()) == 16) {
    return hn::LoadU(d, from);
  } else {
    const hn::Half<D8> half;
    return hn::Combine(d, LoadTwelves(half, from + hn::MaxLanes(D8()) / 2 / 4 * 3),
                       LoadTwelves(half, from));
  }
}
template <class D8>
HWY_INLINE void StoreTwelves(D8 d, hn::Vec<D8> bytes, uint8_t* to) {
  if constexpr (hn::MaxLanes(D8()) == 16) {
    hn::StoreU(bytes, d, to);
  } else {
    const hn::Half<D8> half;
    StoreTwelves(half, hn::LowerHalf(half, bytes), to);
    StoreTwelves(half, hn::UpperHalf(half, bytes), to + hn::MaxLanes(D8()) / 2 / 4 * 3);
  }
}

// Loads kLanes ids.
template <size_t kIdBytes>
HWY_INLINE Int32s LoadIds(const std::byte* ids) {
  const Int32Tag di;
  const auto* from = reinterpret_cast<const uint8_t*>(ids);
  if constexpr (kIdBytes == 4) {
    return hn::LoadU(di, reinterpret_cast<const int32_t*>(from));
  } else if constexpr (kIdBytes == 2) {
    const hn::Rebind<uint16_t, Int32Tag> d16;
    return hn::PromoteTo(di, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(from)));
  } else {
    const hn::Repartition<uint8_t, Int32Tag> d8;
    HWY_ALIGN static constexpr uint8_t kFrom[16] = {0, 1, 2, 255, 3, 4,  5,  255,
                                                    6, 7, 8, 255, 9, 10, 11, 255};
    return hn::BitCast(di,
                       hn::TableLookupBytesOr0(LoadTwelves(d8, from), hn::LoadDup128(d8, kFrom)));
  }
}

// Stores kLanes ids. Also writes undefined bytes after them.
template <size_t kIdBytes>
HWY_INLINE void StoreIds(Int32s ids, std::byte* section) {
  const Int32Tag di;
  auto* to = reinterpret_cast<uint8_t*>(section);
  if constexpr (kIdBytes == 4) {
    hn::StoreU(ids, di, reinterpret_cast<int32_t*>(to));
  } else if constexpr (kIdBytes == 2) {
    const hn::Rebind<uint16_t, Int32Tag> d16;
    hn::StoreU(hn::DemoteTo(d16, ids), d16, reinterpret_cast<uint16_t*>(to));
  } else {
    const hn::Repartition<uint8_t, Int32Tag> d8;
    HWY_ALIGN static constexpr uint8_t kFrom[16] = {0,  1,  2,  4,  5,   6,   8,   9,
                                                    10, 12, 13, 14, 255, 255, 255, 255};
    StoreTwelves(d8, hn::TableLookupBytesOr0(hn::BitCast(d8, ids), hn::LoadDup128(d8, kFrom)), to);
  }
}

// Reads `count` ids from `from`, which has `end - from` readable bytes. Writes up to a vector
// beyond the result.
template <size_t kIdBytes>
HWY_INLINE void UnpackIds(const std::byte* from, const std::byte* end, size_t count, int32_t* to) {
  const auto readable = static_cast<size_t>(end - from);
  size_t i = 0;
  for (; i < count && i * kIdBytes + kIdVectorBytes<kIdBytes> <= readable; i += kLanes) {
    hn::StoreU(LoadIds<kIdBytes>(from + i * kIdBytes), Int32Tag(), to + i);
  }
  for (; i < count; ++i) to[i] = BlockId(from, i, kIdBytes);
}

// Calls visit.operator()<kIdBytes>().
template <class Visitor>
HWY_INLINE auto VisitIdBytes(size_t id_bytes, const Visitor& visit) {
  switch (id_bytes) {
    case 2:
      return visit.template operator()<2>();
    case 3:
      return visit.template operator()<3>();
    default:
      return visit.template operator()<4>();
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#endif  // include guard of the target
