#include "kernels/records/simd_transpose.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/numerics/simd_targets.h"
#include "kernels/records/encoding.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/records/simd_transpose.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR

bool Transpose(const uint32_t*, size_t, uint32_t*) { return false; }

#else

namespace hn = hwy::HWY_NAMESPACE;

// Four ranks of four positions at a time. The last four ranks overlap those before.
bool Transpose(const uint32_t* ranks, size_t slots, uint32_t* positions) {
  if (slots < 4) return false;
  const hn::FixedTag<uint32_t, 4> d;
  const hn::RepartitionToWide<decltype(d)> pairs;
  for (size_t next = 0; next < slots; next += 4) {
    const size_t rank = std::min(next, slots - 4);
    for (size_t lane = 0; lane < kGroupPositions; lane += 4) {
      const uint32_t* from = ranks + rank * kGroupPositions + lane;
      const auto v0 = hn::LoadU(d, from);
      const auto v1 = hn::LoadU(d, from + kGroupPositions);
      const auto v2 = hn::LoadU(d, from + 2 * kGroupPositions);
      const auto v3 = hn::LoadU(d, from + 3 * kGroupPositions);
      const auto low01 = hn::BitCast(pairs, hn::InterleaveLower(d, v0, v1));
      const auto low23 = hn::BitCast(pairs, hn::InterleaveLower(d, v2, v3));
      const auto high01 = hn::BitCast(pairs, hn::InterleaveUpper(d, v0, v1));
      const auto high23 = hn::BitCast(pairs, hn::InterleaveUpper(d, v2, v3));
      uint32_t* to = positions + lane * slots + rank;
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, low01, low23)), d, to);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, low01, low23)), d, to + slots);
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, high01, high23)), d, to + 2 * slots);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, high01, high23)), d, to + 3 * slots);
    }
  }
  return true;
}

#endif

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sis {

HWY_EXPORT(Transpose);

bool TransposeOnVectors(std::span<const std::byte> ranks, std::span<std::byte> positions) {
  return HWY_DYNAMIC_DISPATCH(Transpose)(reinterpret_cast<const uint32_t*>(ranks.data()),
                                         ranks.size() / (kGroupPositions * sizeof(uint32_t)),
                                         reinterpret_cast<uint32_t*>(positions.data()));
}

}  // namespace sis
#endif  // HWY_ONCE
