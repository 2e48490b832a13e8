// The dense kernel's rows by Highway, for every instruction set; the best one is chosen at run
// time.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/dense_row.h"

// Vectors without a fixed size can't be members of FourVectors.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/dense_simd.cc"  // NOLINT
#include "hwy/foreach_target.h"                     // must come before highway.h
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sis::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::CappedTag<float, 16>;
using FloatVector = hn::Vec<Floats>;
constexpr size_t kVectorLanes = hn::MaxLanes(Floats());
constexpr size_t kRunningSums = 64;  // of a block: id mod 64 says which

// One per logit type: Load gives N consecutive logits as float32.
struct LoadFloat32 {
  static constexpr LogitType kType = LogitType::kFloat32;
  static HWY_INLINE FloatVector Load(Floats d, const std::byte* source) {
    return hn::LoadU(d, reinterpret_cast<const float*>(source));
  }
};

struct LoadBfloat16 {
  static constexpr LogitType kType = LogitType::kBfloat16;
  static HWY_INLINE FloatVector Load(Floats d, const std::byte* source) {
    const hn::Rebind<uint16_t, Floats> du16;
    const hn::Rebind<uint32_t, Floats> du32;
    const auto halves = hn::LoadU(du16, reinterpret_cast<const uint16_t*>(source));
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du32, halves)));
  }
};

struct LoadFloat16 {
  static constexpr LogitType kType = LogitType::kFloat16;
  static HWY_INLINE FloatVector Load(Floats d, const std::byte* source) {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128 || (HWY_ARCH_X86 && HWY_TARGET >= HWY_SSE4)
    // Without the instruction, Highway's conversion knows neither infinity nor NaN. As
    // Float16ToFloat32.
    const hn::Rebind<uint16_t, Floats> du16;
    const hn::Rebind<uint32_t, Floats> du32;
    const auto halves =
        hn::PromoteTo(du32, hn::LoadU(du16, reinterpret_cast<const uint16_t*>(source)));
    const auto sign = hn::ShiftLeft<16>(hn::And(halves, hn::Set(du32, 0x8000u)));
    const auto magnitude = hn::ShiftLeft<13>(hn::And(halves, hn::Set(du32, 0x7fffu)));
    const auto exponent_mask = hn::Set(du32, 0x1fu << 23);
    const auto exponent = hn::And(magnitude, exponent_mask);
    const auto normal = hn::Add(magnitude, hn::Set(du32, (127u - 15) << 23));
    const auto special = hn::Add(magnitude, hn::Set(du32, (255u - 31) << 23));
    const auto subnormal =
        hn::BitCast(du32, hn::Sub(hn::BitCast(d, hn::Add(magnitude, hn::Set(du32, 113u << 23))),
                                  hn::Set(d, 0x1p-14f)));
    const auto finite = hn::IfThenElse(hn::Eq(exponent, hn::Zero(du32)), subnormal, normal);
    const auto bits = hn::IfThenElse(hn::Eq(exponent, exponent_mask), special, finite);
    return hn::BitCast(d, hn::Or(bits, sign));
#else
    const hn::Rebind<hwy::float16_t, Floats> dhalf;
    return hn::PromoteTo(d, hn::LoadU(dhalf, reinterpret_cast<const hwy::float16_t*>(source)));
#endif
  }
};

// Four vectors at a time, step by step: the processor sees four independent chains side by side,
// where one after the other would fill its queues with waiting instructions.
struct FourVectors {
  FloatVector v0, v1, v2, v3;
};

HWY_INLINE FourVectors Add(FourVectors a, FourVectors b) {
  return {hn::Add(a.v0, b.v0), hn::Add(a.v1, b.v1), hn::Add(a.v2, b.v2), hn::Add(a.v3, b.v3)};
}
HWY_INLINE FourVectors Add(FourVectors a, FloatVector b) { return Add(a, {b, b, b, b}); }
HWY_INLINE FourVectors Sub(FourVectors a, FourVectors b) {
  return {hn::Sub(a.v0, b.v0), hn::Sub(a.v1, b.v1), hn::Sub(a.v2, b.v2), hn::Sub(a.v3, b.v3)};
}
HWY_INLINE FourVectors Sub(FourVectors a, FloatVector b) { return Sub(a, {b, b, b, b}); }
HWY_INLINE FourVectors Mul(FourVectors a, FourVectors b) {
  return {hn::Mul(a.v0, b.v0), hn::Mul(a.v1, b.v1), hn::Mul(a.v2, b.v2), hn::Mul(a.v3, b.v3)};
}
HWY_INLINE FourVectors Mul(FourVectors a, FloatVector b) { return Mul(a, {b, b, b, b}); }

// 2 * Exp32(x) (kernels/exp32.h) for x <= 88: the same operations, but 2^(n + 1) is made without
// another addition. NaN stays NaN.
HWY_INLINE FourVectors TwiceExp(Floats d, FourVectors x) {
  const hn::Rebind<uint32_t, Floats> du;
  // Even like the constant of Exp32, so that ties go the same way.
  const auto round = hn::Set(d, 0x1.8p+23f + 128.0f);
  const FourVectors u = Add(Mul(x, hn::Set(d, 0x1.715476p+0f)), round);
  const FourVectors n = Sub(u, round);
  FourVectors r = Sub(x, Mul(n, hn::Set(d, 0x1.63p-1f)));
  r = Add(r, Mul(n, hn::Set(d, 0x1.bd0106p-13f)));
  FourVectors p = Add(Mul(r, hn::Set(d, 0x1.6a243ap-10f)), hn::Set(d, 0x1.1239ep-7f));
  p = Add(Mul(p, r), hn::Set(d, 0x1.5558f2p-5f));
  p = Add(Mul(p, r), hn::Set(d, 0x1.555492p-3f));
  p = Add(Mul(p, r), hn::Set(d, 0x1.fffffcp-2f));
  const FourVectors e = Add(Add(r, Mul(Mul(r, r), p)), hn::Set(d, 1.0f));
  const auto scale = [&](FloatVector x, FloatVector u, FloatVector e) HWY_ATTR {
    // The low bits of u are n + 128.
    const auto power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(du, u)));
    return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.0f)), hn::Mul(e, power));
  };
  return {scale(x.v0, u.v0, e.v0), scale(x.v1, u.v1, e.v1), scale(x.v2, u.v2, e.v2),
          scale(x.v3, u.v3, e.v3)};
}

// Adds the upper half of the lanes to the lower one until one is left.
template <class D>
HWY_INLINE float SumTree(D /*d*/, hn::Vec<D> v) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (hn::MaxLanes(D()) > 1) {
    const hn::Half<D> half;
    return SumTree(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
#endif
  return hn::GetLane(v);
}

// The largest of a whole block's logits. If one is NaN, the result is another logit, or NaN, or
// -inf.
template <class Logits>
HWY_INLINE float BlockMaximum(const std::byte* block) {
  const Floats d;
  const size_t lanes = hn::Lanes(d);
  const size_t bytes = lanes * LogitBytes(Logits::kType);
  auto maximum0 = hn::Set(d, kMinusInfinity);
  auto maximum1 = maximum0;
  auto maximum2 = maximum0;
  auto maximum3 = maximum0;
  for (size_t vector = 0; vector < kVocabularyBlock / lanes; vector += 4) {
    const std::byte* source = block + vector * bytes;
    maximum0 = hn::Max(Logits::Load(d, source), maximum0);
    maximum1 = hn::Max(Logits::Load(d, source + bytes), maximum1);
    maximum2 = hn::Max(Logits::Load(d, source + 2 * bytes), maximum2);
    maximum3 = hn::Max(Logits::Load(d, source + 3 * bytes), maximum3);
  }
  return hn::GetLane(
      hn::MaxOfLanes(d, hn::Max(hn::Max(maximum0, maximum1), hn::Max(maximum2, maximum3))));
}

// The terms of a whole block: 64 running sums, then a tree. NaN if a logit is.
template <class Logits>
HWY_INLINE float BlockSum(const std::byte* block, float reference) {
  const Floats d;
  constexpr size_t kLogitBytes = LogitBytes(Logits::kType);
  constexpr size_t kVectorBytes = kVectorLanes * kLogitBytes;
  constexpr size_t kGroups = kRunningSums / (4 * kVectorLanes);
  const auto subtrahend = hn::Set(d, reference);
  // Four vectors of running sums at a time; the columns of one running sum lie 64 apart.
  FourVectors groups[kGroups];
  for (size_t group = 0; group < kGroups; ++group) {
    const auto zero = hn::Zero(d);
    FourVectors sum{zero, zero, zero, zero};
    const std::byte* source = block + group * 4 * kVectorBytes;
    for (size_t column = 0; column < kVocabularyBlock; column += kRunningSums) {
      const FourVectors logits{Logits::Load(d, source), Logits::Load(d, source + kVectorBytes),
                               Logits::Load(d, source + 2 * kVectorBytes),
                               Logits::Load(d, source + 3 * kVectorBytes)};
      sum = Add(sum, TwiceExp(d, Sub(logits, subtrahend)));
      source += kRunningSums * kLogitBytes;
    }
    groups[group] = sum;
  }
  for (size_t half = kGroups / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) groups[i] = Add(groups[i], groups[i + half]);
  }
  const FourVectors& sum = groups[0];
  const auto vector = hn::Add(hn::Add(sum.v0, sum.v2), hn::Add(sum.v1, sum.v3));
  return 0.5f * SumTree(d, vector);
}

// Adds a whole block; false if it holds NaN or +inf.
template <class Logits>
HWY_INLINE bool AddBlock(const std::byte* block, ExpSum& sum) {
  const float maximum = BlockMaximum<Logits>(block);
  if (maximum == kMinusInfinity) {
    // Rare: is all of it -inf, or did the maximum pass over a NaN?
    const LogitRow row{Logits::kType, block, kVocabularyBlock, 0};
    for (int column = 0; column < kVocabularyBlock; ++column) {
      if (LogitAt(row, column) != kMinusInfinity) return false;
    }
    return true;
  }
  if (!(maximum < std::numeric_limits<float>::infinity())) return false;
  const float reference = BlockReference(maximum);
  const float block_sum = BlockSum<Logits>(block, reference);
  if (!(block_sum >= 0.0f)) return false;
  sum.AddBlock(reference, block_sum);
  return true;
}

// A block of which the row holds only the columns [begin, end): the others are -inf, and add 0.
template <class Logits>
HWY_NOINLINE bool AddPartialBlock(const LogitRow& row, int32_t begin, int32_t end, ExpSum& sum) {
  const Floats d;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  HWY_ALIGN float block[kVocabularyBlock];
  for (int i = 0; i < kVocabularyBlock; i += lanes) {
    hn::Store(hn::Set(d, kMinusInfinity), d, block + i);
  }
  float* target = block + (row.vocabulary_offset + begin) % kVocabularyBlock;
  int32_t column = begin;
  for (; column + lanes <= end; column += lanes, target += lanes) {
    hn::StoreU(Logits::Load(d, row.data + size_t(column) * LogitBytes(Logits::kType)), d, target);
  }
  for (; column < end; ++column, ++target) *target = LogitAt(row, column);
  return AddBlock<LoadFloat32>(reinterpret_cast<const std::byte*>(block), sum);
}

template <class Logits>
bool SumRow(const LogitRow& row, ExpSum& sum) {
  sum = ExpSum();
  int32_t begin = 0;
  while (begin < row.width) {
    const int32_t id = row.vocabulary_offset + begin;
    const int32_t end = std::min(row.width, begin + kVocabularyBlock - id % kVocabularyBlock);
    const bool added =
        end - begin == kVocabularyBlock
            ? AddBlock<Logits>(row.data + size_t(begin) * LogitBytes(Logits::kType), sum)
            : AddPartialBlock<Logits>(row, begin, end, sum);
    if (!added) return false;
    begin = end;
  }
  return true;
}

bool SumRowOfType(const LogitRow& row, ExpSum& sum) {
  switch (row.type) {
    case LogitType::kFloat32:
      return SumRow<LoadFloat32>(row, sum);
    case LogitType::kFloat16:
      return SumRow<LoadFloat16>(row, sum);
    case LogitType::kBfloat16:
      return SumRow<LoadBfloat16>(row, sum);
  }
  return false;
}

}  // namespace sis::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sis {

HWY_EXPORT(SumRowOfType);

bool SumRowSimd(const LogitRow& row, ExpSum& sum) {
  return HWY_DYNAMIC_DISPATCH(SumRowOfType)(row, sum);
}

}  // namespace sis
#endif
