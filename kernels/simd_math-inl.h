// The exact arithmetic of docs/numerics.md on vectors: bit for bit what exp32.h, decide.h, philox.h
// and sums.h do to one value. Highway compiles it once for every target. Mul and Add are rounded
// separately: never MulAdd here.
#if defined(SIS_KERNELS_SIMD_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SIS_KERNELS_SIMD_MATH_INL_H_
#undef SIS_KERNELS_SIMD_MATH_INL_H_
#else
#define SIS_KERNELS_SIMD_MATH_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <limits>

#include "hwy/highway.h"
#include "kernels/encoding.h"
#include "kernels/philox.h"

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// One position a lane. A group is one vector, or the few that it takes on narrower machines.
using FloatTag = hn::CappedTag<float, kGroupPositions>;
using Uint32Tag = hn::RebindToUnsigned<FloatTag>;
using Int32Tag = hn::RebindToSigned<FloatTag>;
using Floats = hn::Vec<FloatTag>;
using Uint32s = hn::Vec<Uint32Tag>;
using Int32s = hn::Vec<Int32Tag>;
using Mask = hn::Mask<FloatTag>;

inline constexpr size_t kLanes = hn::MaxLanes(FloatTag());

HWY_INLINE Floats Constant(float x) { return hn::Set(FloatTag(), x); }

HWY_INLINE Floats FlushAll(Floats x) {
  return hn::IfThenZeroElse(hn::Lt(hn::Abs(x), Constant(0x1p-100f)), x);
}

// Exp32 of every lane. Below `limit` = 88 the caller knows its arguments to be, or else they are
// limited to it.
enum class Arguments { kAny, kAtMost88 };

template <Arguments kArguments>
HWY_INLINE Floats ExpAll(Floats x) {
  const FloatTag d;
  const Uint32Tag du;
  if constexpr (kArguments == Arguments::kAny) x = hn::Min(x, Constant(88.0f));
  const Floats shifted = hn::Add(hn::Mul(x, Constant(0x1.715476p+0f)), Constant(0x1.8p+23f));
  const Floats n = hn::Sub(shifted, Constant(0x1.8p+23f));
  Floats r = hn::Sub(x, hn::Mul(n, Constant(0x1.63p-1f)));
  r = hn::Add(r, hn::Mul(n, Constant(0x1.bd0106p-13f)));
  Floats p = Constant(0x1.6a243ap-10f);
  p = hn::Add(hn::Mul(p, r), Constant(0x1.1239ep-7f));
  p = hn::Add(hn::Mul(p, r), Constant(0x1.5558f2p-5f));
  p = hn::Add(hn::Mul(p, r), Constant(0x1.555492p-3f));
  p = hn::Add(hn::Mul(p, r), Constant(0x1.fffffcp-2f));
  const Floats e = hn::Add(Constant(1.0f), hn::Add(r, hn::Mul(hn::Mul(r, r), p)));
  // n is in the low bits of `shifted`, and e * 2^n is normal: adding to the exponent is the
  // multiplication.
  const Floats result =
      hn::BitCast(d, hn::Add(hn::BitCast(du, e), hn::ShiftLeft<23>(hn::BitCast(du, shifted))));
  return hn::IfThenZeroElse(hn::Lt(x, Constant(-87.0f)), result);
}

// uniform < trunc(a * 2^32), for a in [0, 1].
HWY_INLINE Mask BelowThreshold(Uint32s uniforms, Floats a) {
  const FloatTag d;
  const Int32Tag di;
  const Int32s sign = hn::Set(di, std::numeric_limits<int32_t>::min());
  // Both sides less 2^31, which fit a signed integer, unless a = 1, which is always above.
  const Floats scaled = hn::Mul(a, Constant(0x1p32f));
  const Mask upper = hn::Ge(scaled, Constant(0x1p31f));
  const Int32s low_bits =
      hn::ConvertTo(di, hn::Sub(scaled, hn::IfThenElseZero(upper, Constant(0x1p31f))));
  const Int32s threshold =
      hn::IfThenElse(hn::RebindMask(di, upper), low_bits, hn::Xor(low_bits, sign));
  const Mask below = hn::RebindMask(d, hn::Lt(hn::Xor(hn::BitCast(di, uniforms), sign), threshold));
  return hn::Or(below, hn::Eq(a, Constant(1.0f)));
}

// x * 2^30 truncated, as high * 2^16 + low: both of the sign of x, high at most 2^20 and low below
// 2^16.
struct SplitFixed {
  Int32s high;
  Int32s low;
};

// x must be in [-64, 64].
HWY_INLINE SplitFixed ToFixed(Floats x) {
  const FloatTag d;
  const Int32Tag di;
  const Floats scaled = hn::Mul(x, Constant(0x1p14f));
  const Int32s high = hn::ConvertTo(di, scaled);
  const Floats rest = hn::Sub(scaled, hn::ConvertTo(d, high));
  return {high, hn::ConvertTo(di, hn::Mul(rest, Constant(0x1p16f)))};
}

// x must be in [0, 1].
HWY_INLINE SplitFixed UnitToFixed(Floats x) {
  const Int32Tag di;
  const Int32s fixed = hn::ConvertTo(di, hn::Mul(x, Constant(0x1p30f)));
  return {hn::ShiftRight<16>(fixed), hn::And(fixed, hn::Set(di, 0xffff))};
}

// Halves of the 64-bit products of all lanes.
HWY_INLINE void MultiplyWide(Uint32s a, uint32_t factor, Uint32s& high, Uint32s& low) {
  const Uint32Tag du;
  const hn::RepartitionToWide<Uint32Tag> dw;
  const Uint32s b = hn::Set(du, factor);
  const auto even = hn::MulEven(a, b);
  const auto odd = hn::MulEven(hn::BitCast(du, hn::ShiftRight<32>(hn::BitCast(dw, a))), b);
  low = hn::OddEven(hn::BitCast(du, hn::ShiftLeft<32>(odd)), hn::BitCast(du, even));
  high = hn::OddEven(hn::BitCast(du, odd), hn::BitCast(du, hn::ShiftRight<32>(even)));
}

// AcceptanceUniforms of kLanes quads from `quad` on, in order of position: 4 * kLanes values.
HWY_INLINE void StoreUniforms(uint64_t sequence_key, uint32_t quad, uint64_t draw,
                              uint32_t* HWY_RESTRICT uniforms) {
  const Uint32Tag du;
  // Positions wrap around at 2^32, and quads with them.
  Uint32s c0 = hn::And(hn::Iota(du, quad), hn::Set(du, 0x3fffffffu));
  Uint32s c1 = hn::Set(du, static_cast<uint32_t>(draw));
  Uint32s c2 = hn::Set(du, static_cast<uint32_t>(draw >> 32));
  Uint32s c3 = hn::Set(du, 1u);
  auto key0 = static_cast<uint32_t>(sequence_key);
  auto key1 = static_cast<uint32_t>(sequence_key >> 32);
  for (int round = 0; round < 10; ++round) {
    Uint32s high0, low0, high1, low1;
    MultiplyWide(c0, 0xD2511F53u, high0, low0);
    MultiplyWide(c2, 0xCD9E8D57u, high1, low1);
    c0 = hn::Xor(hn::Xor(high1, c1), hn::Set(du, key0));
    c1 = low1;
    c2 = hn::Xor(hn::Xor(high0, c3), hn::Set(du, key1));
    c3 = low0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  hn::StoreInterleaved4(c0, c1, c2, c3, du, uniforms);
}

HWY_INLINE Floats LoadFloats(const float* values) { return hn::LoadU(FloatTag(), values); }

// Halves, widened.
HWY_INLINE Floats LoadFloats(const uint16_t* halves) {
  const FloatTag d;
#if HWY_TARGET <= HWY_AVX2 || HWY_TARGET == HWY_NEON
  const hn::Rebind<hwy::float16_t, FloatTag> dh;
  return hn::PromoteTo(d, hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(halves)));
#else
  // The emulation of these targets takes infinities for 65536.
  const Uint32Tag du;
  const Int32Tag di;
  const Uint32s bits = hn::PromoteTo(du, hn::LoadU(hn::Rebind<uint16_t, FloatTag>(), halves));
  const Int32s magnitude = hn::BitCast(di, hn::And(bits, hn::Set(du, 0x7fffu)));
  const Uint32s sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000u)));
  const Int32s exponent_shift =
      hn::IfThenElse(hn::Lt(magnitude, hn::Set(di, 0x7c00)), hn::Set(di, (127 - 15) << 23),
                     hn::Set(di, (255 - 31) << 23));
  const Floats normal = hn::BitCast(d, hn::Add(hn::ShiftLeft<13>(magnitude), exponent_shift));
  const Floats subnormal = hn::Mul(hn::ConvertTo(d, magnitude), Constant(0x1p-24f));
  const Mask is_subnormal = hn::RebindMask(d, hn::Lt(magnitude, hn::Set(di, 0x0400)));
  return hn::Or(hn::IfThenElse(is_subnormal, subnormal, normal), hn::BitCast(d, sign));
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#endif  // include guard of the target
