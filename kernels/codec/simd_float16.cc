#include "kernels/codec/simd_float16.h"

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/codec/float16.h"
#include "kernels/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codec/simd_float16.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR

// The caller does the rest one by one.
size_t DecodeVectors(const uint16_t*, float*, size_t) { return 0; }

#else

namespace hn = hwy::HWY_NAMESPACE;
using FloatTag = hn::ScalableTag<float>;

HWY_INLINE hn::Vec<FloatTag> Decode(const uint16_t* halves) {
  const FloatTag d;
#if HWY_TARGET == HWY_EMU128 || (HWY_ARCH_X86 && HWY_TARGET >= HWY_SSE4)
  // Without the instruction, Highway's conversion knows neither infinity nor NaN.
  const hn::Rebind<uint16_t, FloatTag> du16;
  const hn::RebindToUnsigned<FloatTag> du32;
  const auto bits = hn::PromoteTo(du32, hn::LoadU(du16, halves));
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(du32, 0x8000u)));
  const auto magnitude = hn::And(bits, hn::Set(du32, 0x7FFFu));
  const auto shifted = hn::ShiftLeft<13>(magnitude);
  const auto normal = hn::Add(shifted, hn::Set(du32, 112u << 23));
  const auto special = hn::Or(shifted, hn::Set(du32, 0xFFu << 23));
  // Below 2^24, so exact, and never a subnormal float.
  const hn::RebindToSigned<FloatTag> di32;
  const auto subnormal = hn::BitCast(
      du32, hn::Mul(hn::ConvertTo(d, hn::BitCast(di32, magnitude)), hn::Set(d, 0x1p-24f)));
  const auto finite = hn::IfThenElse(hn::Gt(hn::Set(du32, 0x400u), magnitude), subnormal, normal);
  const auto value = hn::IfThenElse(hn::Gt(magnitude, hn::Set(du32, 0x7BFFu)), special, finite);
  return hn::BitCast(d, hn::Or(value, sign));
#else
  const hn::Rebind<hwy::float16_t, FloatTag> dhalf;
  return hn::PromoteTo(d, hn::LoadU(dhalf, reinterpret_cast<const hwy::float16_t*>(halves)));
#endif
}

size_t DecodeVectors(const uint16_t* halves, float* values, size_t count) {
  const FloatTag d;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    hn::StoreU(Decode(halves + i), d, values + i);
  }
  return i;
}

#endif

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sis {

HWY_EXPORT(DecodeVectors);

void DecodeFloat16s(std::span<const uint16_t> halves, std::span<float> values) {
  const size_t decoded =
      HWY_DYNAMIC_DISPATCH(DecodeVectors)(halves.data(), values.data(), halves.size());
  for (size_t i = decoded; i < halves.size(); ++i) values[i] = DecodeFloat16(halves[i]);
}

}  // namespace sis
#endif
