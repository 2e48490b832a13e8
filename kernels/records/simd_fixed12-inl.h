// To 12 bits and back on vectors: the same bits as fixed12.h gives one by one.
#if defined(SIS_KERNELS_SIMD_FIXED12_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SIS_KERNELS_SIMD_FIXED12_INL_H_
#undef SIS_KERNELS_SIMD_FIXED12_INL_H_
#else
#define SIS_KERNELS_SIMD_FIXED12_INL_H_
#endif

#include <cstdint>
#include <limits>

#include "hwy/highway.h"
#include "kernels/numerics/simd_math-inl.h"
#include "kernels/records/fixed12.h"

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {

// Fixed12RoundedDown, as a float, where the multiplier reaches down to x or x is below the floor.
//
// Depth is an integer below 2^24, so exact. So is the quotient rounded up: were an integer n within
// half a unit in the last place of depth / m, but not equal to it, the two would be at least 1 / m
// and at most n * 2^-24 apart; but n * m < 2^24.
HWY_INLINE Floats CodesRoundedDown(Floats x, Floats multipliers) {
  const Uint32Tag du;
  const Floats units = hn::Floor(hn::Mul(x, Constant(0x1p18f)));
  // A machine that flushes subnormals takes the smallest x below zero for 0.
  const Mask below_zero =
      hn::RebindMask(FloatTag(), hn::Gt(hn::BitCast(du, x), hn::Set(du, uint32_t{0x80000000})));
  const Floats depth =
      hn::Max(hn::Sub(Constant(4096.0f), units), hn::IfThenElseZero(below_zero, Constant(4097.0f)));
  const Floats codes = hn::Ceil(hn::Div(depth, multipliers));
  return hn::IfThenElse(hn::Ge(x, Constant(kFixed12Floor)), codes,
                        Constant(float{kFixed12MinusInfinity}));
}

// What the codes stand for.
HWY_INLINE Floats Decode(Floats codes, Floats steps) {
  const Floats values = MinusExactProduct(Constant(0x1p-6f), codes, steps);
  return hn::IfThenElse(hn::Eq(codes, Constant(float{kFixed12MinusInfinity})),
                        Constant(-std::numeric_limits<float>::infinity()), values);
}

// Fixed12Multiplier of values that are not below the floor. Depth / 4094 rounded up is a code of
// that multiplier, and exact as well.
HWY_INLINE Floats MultipliersFor(Floats lowest) {
  return hn::Max(CodesRoundedDown(lowest, Constant(float{kFixed12LowestCode})), Constant(1));
}

}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#endif  // include guard of the target
