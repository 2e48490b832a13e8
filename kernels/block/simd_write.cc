#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
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
#include "kernels/numerics/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {
namespace {

// Calls write(i, first value, used values) for each row. `write` may read up to a vector beyond the
// used values.
template <typename T, class Write>
HWY_INLINE void VisitRows(std::span<const T> rows, size_t slots, std::span<const uint8_t> counts,
                          const Write& write) {
  std::array<T, kMaxBlockSlots + kLanes> last = {};
  for (size_t i = 0; i < counts.size(); ++i) {
    const T* row = rows.data() + i * slots;
    const size_t used = counts[i];
    if (HWY_UNLIKELY(i * slots + used + kLanes > rows.size())) {
      std::copy_n(row, used, last.begin());
      row = last.data();
    }
    write(i, row, used);
  }
}

void WriteCodesOf(std::span<const float> log_probs, size_t slots, std::span<const uint8_t> counts,
                  std::span<const uint8_t> multipliers, std::byte* codes) {
  const hn::Rebind<uint16_t, FloatTag> d16;
  auto* to = reinterpret_cast<uint16_t*>(codes);
  VisitRows(log_probs, slots, counts, [&](size_t i, const float* row, size_t used) HWY_ATTR {
    const Floats multiplier = Constant(multipliers[i]);
    for (size_t slot = 0; slot < used; slot += kLanes) {
      const Floats scaled = hn::Mul(LoadFloats(row + slot), Constant(0x1p18f));
      const Floats depths = hn::Sub(Constant(4096.0f), hn::Floor(scaled));
      // Depths are below 2^24, so only exact quotients round to an integer.
      const Int32s some = hn::ConvertTo(Int32Tag(), hn::Ceil(hn::Div(depths, multiplier)));
      hn::StoreU(hn::DemoteTo(d16, some), d16, to + slot);
    }
    to += used;
  });
}

void WriteIdsOf(std::span<const int32_t> ids, size_t slots, std::span<const uint8_t> counts,
                size_t id_bytes, std::byte* to) {
  VisitIdBytes(id_bytes, [&]<size_t kIdBytes>() HWY_ATTR {
    VisitRows(ids, slots, counts, [&](size_t, const int32_t* row, size_t used) HWY_ATTR {
      for (size_t slot = 0; slot < used; slot += kLanes) {
        StoreIds<kIdBytes>(hn::LoadU(Int32Tag(), row + slot), to + slot * kIdBytes);
      }
      to += used * kIdBytes;
    });
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
