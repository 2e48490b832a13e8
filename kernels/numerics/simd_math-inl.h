// The exact arithmetic of docs/numerics.md on vectors, with the same bits as exp32.h, decide.h,
// philox.h and sums.h. Highway compiles it once per target. Never use MulAdd here: products and
// sums must be rounded separately.
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
#include "kernels/numerics/philox.h"

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// One position a lane, at most 16 of them.
using FloatTag = hn::CappedTag<float, 16>;
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

// Two vectors that go through the same steps together, so that a processor can overlap their
// independent steps. A complete exponential is too long for it to reach the next vector's steps.
template <class V>
struct Pair {
  V first;
  V second;
};
using TwoFloats = Pair<Floats>;
using FourFloats = Pair<TwoFloats>;

template <class V>
HWY_INLINE Pair<V> Mul(Pair<V> x, Pair<V> y) {
  return {Mul(x.first, y.first), Mul(x.second, y.second)};
}
template <class V>
HWY_INLINE Pair<V> Mul(Pair<V> x, Floats y) {
  return {Mul(x.first, y), Mul(x.second, y)};
}
template <class V>
HWY_INLINE Pair<V> Add(Pair<V> x, Pair<V> y) {
  return {Add(x.first, y.first), Add(x.second, y.second)};
}
template <class V>
HWY_INLINE Pair<V> Add(Pair<V> x, Floats y) {
  return {Add(x.first, y), Add(x.second, y)};
}
template <class V>
HWY_INLINE Pair<V> Sub(Pair<V> x, Floats y) {
  return {Sub(x.first, y), Sub(x.second, y)};
}

// Returns c - n * factor. The product is exact, so fusing does not change the result.
HWY_INLINE Floats MinusExactProduct(Floats c, Floats n, Floats factor) {
  return hn::NegMulAdd(n, factor, c);
}
template <class V>
HWY_INLINE Pair<V> MinusExactProduct(Pair<V> c, Pair<V> n, Floats factor) {
  return {MinusExactProduct(c.first, n.first, factor),
          MinusExactProduct(c.second, n.second, factor)};
}

// Nearest: the nearest integer, ties to even, for |x| < 2^22. The other returns e * 2^n, which must
// be normal. NaN stays NaN.
#if HWY_TARGET <= HWY_AVX3
HWY_INLINE Floats Nearest(Floats x) { return hn::Round(x); }
HWY_INLINE Floats TimesPowerOf2(Floats e, Floats n) { return {_mm512_scalef_ps(e.raw, n.raw)}; }
#else
HWY_INLINE Floats Nearest(Floats x) {
  return hn::Sub(hn::Add(x, Constant(0x1.8p+23f)), Constant(0x1.8p+23f));
}
HWY_INLINE Floats TimesPowerOf2(Floats e, Floats n) {
  // The exponent's bits are the low ones of this sum.
  const Uint32s biased = hn::BitCast(Uint32Tag(), hn::Add(n, Constant(0x1.8p+23f + 127.0f)));
  return hn::Mul(e, hn::BitCast(FloatTag(), hn::ShiftLeft<23>(biased)));
}
#endif
template <class V>
HWY_INLINE Pair<V> Nearest(Pair<V> x) {
  return {Nearest(x.first), Nearest(x.second)};
}
template <class V>
HWY_INLINE Pair<V> TimesPowerOf2(Pair<V> e, Pair<V> n) {
  return {TimesPowerOf2(e.first, n.first), TimesPowerOf2(e.second, n.second)};
}

// Exp32Steps of every lane that is in [-87, 88].
template <class V>
struct ExpSteps {
  V n;
  V r;
  V s;
};
template <class V>
HWY_INLINE ExpSteps<V> StepsOfExp(V x) {
  const V n = Nearest(Mul(x, Constant(0x1.715476p+0f)));
  V r = MinusExactProduct(x, n, Constant(0x1.63p-1f));
  r = Add(r, Mul(n, Constant(0x1.bd0106p-13f)));
  V p = Add(Mul(r, Constant(0x1.6a243ap-10f)), Constant(0x1.1239ep-7f));
  p = Add(Mul(p, r), Constant(0x1.5558f2p-5f));
  p = Add(Mul(p, r), Constant(0x1.555492p-3f));
  p = Add(Mul(p, r), Constant(0x1.fffffcp-2f));
  return {n, r, Mul(Mul(r, r), p)};
}
template <class V>
HWY_INLINE V FinishExp(const ExpSteps<V>& steps) {
  return TimesPowerOf2(Add(Add(steps.r, steps.s), Constant(1.0f)), steps.n);
}

// Exp32 of the same lanes.
template <class V>
HWY_INLINE V ExpInRange(V x) {
  return FinishExp(StepsOfExp(x));
}

// Returns 0 where x < -87, else `exponential`. Requires x <= 88.
HWY_INLINE Floats ZeroBelowRange(Floats x, Floats exponential) {
  return hn::IfThenZeroElse(hn::Lt(x, Constant(-87.0f)), exponential);
}
template <class V>
HWY_INLINE Pair<V> ZeroBelowRange(Pair<V> x, Pair<V> exponential) {
  return {ZeroBelowRange(x.first, exponential.first), ZeroBelowRange(x.second, exponential.second)};
}
template <class V>
HWY_INLINE V ExpAtMost88(V x) {
  return ZeroBelowRange(x, ExpInRange(x));
}

// Returns min(x, 88). x must not be NaN.
HWY_INLINE Floats LimitTo88(Floats x) { return hn::Min(x, Constant(88.0f)); }
template <class V>
HWY_INLINE Pair<V> LimitTo88(Pair<V> x) {
  return {LimitTo88(x.first), LimitTo88(x.second)};
}

// Returns Exp32 of log-probs. For NaN and numbers above 88 the result is NaN or above 2^99, so that
// no mass with it is valid.
template <class V>
HWY_INLINE V ExpOfLogProb(V x) {
#if HWY_TARGET <= HWY_AVX3
  return ExpAtMost88(x);
#else
  // Min(NaN, 88) is NaN or 88.
  return ExpAtMost88(LimitTo88(x));
#endif
}

// ExpOfLogProb of a few vectors at once.
HWY_INLINE void ExpOfEach(const Floats (&x)[1], Floats (&e)[1]) { e[0] = ExpOfLogProb(x[0]); }
HWY_INLINE void ExpOfEach(const Floats (&x)[2], Floats (&e)[2]) {
  const TwoFloats two = ExpOfLogProb(TwoFloats{x[0], x[1]});
  e[0] = two.first;
  e[1] = two.second;
}
HWY_INLINE void ExpOfEach(const Floats (&x)[3], Floats (&e)[3]) {
  const TwoFloats two = ExpOfLogProb(TwoFloats{x[0], x[1]});
  e[0] = two.first;
  e[1] = two.second;
  e[2] = ExpOfLogProb(x[2]);
}
HWY_INLINE void ExpOfEach(const Floats (&x)[4], Floats (&e)[4]) {
  const FourFloats four = ExpOfLogProb(FourFloats{{x[0], x[1]}, {x[2], x[3]}});
  e[0] = four.first.first;
  e[1] = four.first.second;
  e[2] = four.second.first;
  e[3] = four.second.second;
}

// Exp32 and Excess32 of values of at most 88.
struct ExpAndExcess {
  Floats exponential;
  Floats excess;
};
HWY_INLINE ExpAndExcess ExpAndExcessAtMost88(Floats x) {
  const ExpSteps<Floats> steps = StepsOfExp(x);
  const Floats exponential = ZeroBelowRange(x, FinishExp(steps));
  const Floats difference = hn::Sub(hn::Sub(exponential, Constant(1.0f)), x);
  return {exponential, hn::IfThenElse(hn::Eq(steps.n, hn::Zero(FloatTag())), steps.s, difference)};
}

// Rounds towards zero. x must fit in an int32.
HWY_INLINE Int32s Truncate(Floats x) {
#if HWY_TARGET <= HWY_AVX3
  return {_mm512_cvttps_epi32(x.raw)};
#else
  return hn::ConvertTo(Int32Tag(), x);
#endif
}

// uniform < trunc(a * 2^32), for a in [0, 1].
HWY_INLINE Mask BelowThreshold(Uint32s uniforms, Floats a) {
  const Floats scaled = hn::Mul(a, Constant(0x1p32f));
  const Mask certain = hn::Eq(a, Constant(1.0f));
#if HWY_TARGET <= HWY_AVX3
  const __mmask16 below = _mm512_cmplt_epu32_mask(uniforms.raw, _mm512_cvttps_epu32(scaled.raw));
  return hn::Or(certain, Mask{below});
#else
  const FloatTag d;
  const Int32Tag di;
  const Int32s sign = hn::Set(di, std::numeric_limits<int32_t>::min());
  // Compares both sides minus 2^31, which fit in a signed integer, except for a = 1.
  const Mask upper = hn::Ge(scaled, Constant(0x1p31f));
  const Int32s low_bits = Truncate(hn::Sub(scaled, hn::IfThenElseZero(upper, Constant(0x1p31f))));
  const Int32s threshold =
      hn::IfThenElse(hn::RebindMask(di, upper), low_bits, hn::Xor(low_bits, sign));
  const Mask below = hn::RebindMask(d, hn::Lt(hn::Xor(hn::BitCast(di, uniforms), sign), threshold));
  return hn::Or(below, certain);
#endif
}

// x * 2^30 truncated, as high * 2^16 + low: both of the sign of x, high at most 2^20 and low below
// 2^16.
struct SplitFixed {
  Int32s high;
  Int32s low;
};

// x must be in [-64, 64].
HWY_INLINE SplitFixed ToFixed(Floats x) {
  const Floats scaled = hn::Mul(x, Constant(0x1p14f));
  const Int32s high = Truncate(scaled);
  const Floats rest = hn::Sub(scaled, hn::ConvertTo(FloatTag(), high));
  return {high, Truncate(hn::Mul(rest, Constant(0x1p16f)))};
}

// x must be in [0, 1].
HWY_INLINE SplitFixed UnitToFixed(Floats x) {
  const Int32s fixed = Truncate(hn::Mul(x, Constant(0x1p30f)));
  return {hn::ShiftRight<16>(fixed), hn::And(fixed, hn::Set(Int32Tag(), 0xffff))};
}

// A fixed-point sum in 32-bit halves: enough for kMaxPositions positions, all lanes together.
struct SplitSum {
  static constexpr size_t kMaxPositions = 1024;

  HWY_ALIGN int32_t high[kLanes] = {};
  HWY_ALIGN int32_t low[kLanes] = {};

  HWY_INLINE void Add(SplitFixed value) {
    const Int32Tag di;
    hn::Store(hn::Add(hn::Load(di, high), value.high), di, high);
    hn::Store(hn::Add(hn::Load(di, low), value.low), di, low);
  }
  int64_t Total() const {
    const Int32Tag di;
    return (int64_t{hn::GetLane(hn::SumOfLanes(di, hn::Load(di, high)))} << 16) +
           hn::GetLane(hn::SumOfLanes(di, hn::Load(di, low)));
  }
};

using Uint64Tag = hn::RepartitionToWide<Uint32Tag>;
using Uint64s = hn::Vec<Uint64Tag>;

// One of Philox's four words of every quad, in the low half of a 64-bit lane; the high half may
// hold anything.
using Word = Pair<Uint64s>;

HWY_INLINE Word Product(Word word, Uint32s factor) {
  const Uint32Tag du;
  return {hn::MulEven(hn::BitCast(du, word.first), factor),
          hn::MulEven(hn::BitCast(du, word.second), factor)};
}

HWY_INLINE Word HighXorXor(Word product, Word word, Uint64s key) {
  return {hn::Xor(hn::Xor(hn::ShiftRight<32>(product.first), key), word.first),
          hn::Xor(hn::Xor(hn::ShiftRight<32>(product.second), key), word.second)};
}

// AcceptanceUniforms of kLanes quads from `quad` on, in order of position: 4 * kLanes values.
HWY_INLINE void StoreUniforms(uint64_t sequence_key, uint32_t quad, uint64_t draw,
                              uint32_t* HWY_RESTRICT uniforms) {
  const Uint32Tag du;
  const Uint64Tag dw;
  constexpr uint64_t kQuadMask = 0x3fffffff;  // positions wrap around at 2^32, and quads with them
  const Uint64s mask = hn::Set(dw, kQuadMask);
  Word c0 = {hn::And(hn::Iota(dw, quad), mask), hn::And(hn::Iota(dw, quad + kLanes / 2), mask)};
  Word c1 = {hn::Set(dw, draw), hn::Set(dw, draw)};
  Word c2 = {hn::Set(dw, draw >> 32), hn::Set(dw, draw >> 32)};
  Word c3 = {hn::Set(dw, 1), hn::Set(dw, 1)};
  const Uint32s multiplier0 = hn::Set(du, 0xD2511F53u);
  const Uint32s multiplier1 = hn::Set(du, 0xCD9E8D57u);
  auto key0 = static_cast<uint32_t>(sequence_key);
  auto key1 = static_cast<uint32_t>(sequence_key >> 32);
  for (int round = 0; round < 10; ++round) {
    const Word product0 = Product(c0, multiplier0);
    const Word product1 = Product(c2, multiplier1);
    c0 = HighXorXor(product1, c1, hn::Set(dw, key0));
    c1 = product1;
    c2 = HighXorXor(product0, c3, hn::Set(dw, key1));
    c3 = product0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  const auto join = [du](Uint64s low, Uint64s high) HWY_ATTR {
    return hn::BitCast(Uint64Tag(),
                       hn::OddEven(hn::BitCast(du, hn::ShiftLeft<32>(high)), hn::BitCast(du, low)));
  };
  auto* pairs = reinterpret_cast<uint64_t*>(uniforms);
  hn::StoreInterleaved2(join(c0.first, c1.first), join(c2.first, c3.first), dw, pairs);
  hn::StoreInterleaved2(join(c0.second, c1.second), join(c2.second, c3.second), dw, pairs + kLanes);
}

HWY_INLINE Floats LoadFloats(const float* values) { return hn::LoadU(FloatTag(), values); }

}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#endif  // include guard of the target
