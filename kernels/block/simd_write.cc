#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/block/write_rows.h"
#include "kernels/numerics/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/block/simd_write.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/block/block.h"
#include "kernels/block/fixed16.h"
#include "kernels/block/ids-inl.h"
#include "kernels/block/simd_rows-inl.h"
#include "kernels/numerics/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {
namespace {

void WriteCodesOf(std::span<const float> log_probs, size_t slots, std::span<const uint8_t> counts,
                  std::span<const uint8_t> multipliers, std::byte* codes) {
  const hn::Rebind<uint16_t, FloatTag> d16;
  auto* to = reinterpret_cast<uint16_t*>(codes);
  Rows rows(log_probs, slots);
  for (size_t i = 0; i < counts.size(); ++i) {
    const size_t used = counts[i];
    const float* const row = rows.From(i, used);
    const Floats multiplier = Constant(multipliers[i]);
    for (size_t slot = 0; slot < used; slot += kLanes) {
      const Floats scaled = hn::Mul(LoadFloats(row + slot), Constant(0x1p18f));
      const Floats depths = hn::Sub(Constant(4096.0f), hn::Floor(scaled));
      // Depths are below 2^24, so only exact quotients round to an integer.
      const Int32s some = hn::ConvertTo(Int32Tag(), hn::Ceil(hn::Div(depths, multiplier)));
      hn::StoreU(hn::DemoteTo(d16, some), d16, to + slot);
    }
    to += used;
  }
}

void WriteIdsOf(std::span<const int32_t> ids, size_t slots, std::span<const uint8_t> counts,
                size_t id_bytes, std::byte* to) {
  VisitIdBytes(id_bytes, [&]<size_t kIdBytes>() HWY_ATTR {
    Rows rows(ids, slots);
    for (size_t i = 0; i < counts.size(); ++i) {
      const size_t used = counts[i];
      const int32_t* const row = rows.From(i, used);
      for (size_t slot = 0; slot < used; slot += kLanes) {
        StoreIds<kIdBytes>(hn::LoadU(Int32Tag(), row + slot), to + slot * kIdBytes);
      }
      to += used * kIdBytes;
    }
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sis {
namespace {

HWY_EXPORT(WriteCodesOf);
HWY_EXPORT(WriteIdsOf);

}  // namespace

void WriteCodes(std::span<const float> log_probs, size_t slots, std::span<const uint8_t> counts,
                std::span<const uint8_t> multipliers, std::byte* codes) {
  HWY_DYNAMIC_DISPATCH(WriteCodesOf)(log_probs, slots, counts, multipliers, codes);
}

void WriteIds(std::span<const int32_t> ids, size_t slots, std::span<const uint8_t> counts,
              size_t id_bytes, std::byte* to) {
  HWY_DYNAMIC_DISPATCH(WriteIdsOf)(ids, slots, counts, id_bytes, to);
}

}  // namespace sis
#endif
