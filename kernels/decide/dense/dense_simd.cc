// The dense kernel's rows by Highway, for every instruction set; the best one is chosen at run
// time.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/decide/dense/dense_row.h"
#include "kernels/numerics/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/decide/dense/dense_simd.cc"  // NOLINT
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sis::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::CappedTag<float, 16>;
using FloatVector = hn::Vec<Floats>;
constexpr size_t kVectorLanes = hn::MaxLanes(Floats());
constexpr size_t kPrefetchBytes = 8192;  // ahead of what is read
constexpr size_t kRunningSums = 64;      // of a block: id mod 64 says which

template <class D>
HWY_INLINE hn::Vec<D> LoadUnaligned(D d, const std::byte* source) {
#if HWY_TARGET == HWY_SCALAR
  hn::TFromD<D> lane;  // LoadU is an aligned load here
  std::memcpy(&lane, source, sizeof(lane));
  return hn::Set(d, lane);
#else
  return hn::LoadU(d, reinterpret_cast<const hn::TFromD<D>*>(source));
#endif
}

// One per logit type: Load gives N consecutive logits as float32.
struct LoadFloat32 {
  static constexpr LogitType kType = LogitType::kFloat32;
  static HWY_INLINE FloatVector Load(Floats d, const std::byte* source) {
    return LoadUnaligned(d, source);
  }
};

struct LoadBfloat16 {
  static constexpr LogitType kType = LogitType::kBfloat16;
  static HWY_INLINE FloatVector Load(Floats d, const std::byte* source) {
    const hn::Rebind<uint16_t, Floats> du16;
    const hn::Rebind<uint32_t, Floats> du32;
    const auto halves = LoadUnaligned(du16, source);
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du32, halves)));
  }
};

struct LoadFloat16 {
  static constexpr LogitType kType = LogitType::kFloat16;
  static HWY_INLINE FloatVector Load(Floats d, const std::byte* source) {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128 || (HWY_ARCH_X86 && HWY_TARGET >= HWY_SSE4)
    // Without the instruction, Highway's conversion knows neither infinity nor NaN. As
    // DecodeFloat16.
    const hn::Rebind<uint16_t, Floats> du16;
    const hn::Rebind<uint32_t, Floats> du32;
    const auto halves = hn::PromoteTo(du32, LoadUnaligned(du16, source));
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
    return hn::PromoteTo(d, LoadUnaligned(dhalf, source));
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

// 2 * Exp32(x) (kernels/numerics/exp32.h) for x <= 88: the same operations, but 2^(n + 1) is made
// without another addition. NaN stays NaN.
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

// The largest of the logits in the columns [begin, end) of a block, multiples of 64. If one is NaN,
// the result is +inf or above, or NaN, or as if that logit weren't there.
HWY_INLINE float Maximum(LoadFloat32 /*type*/, const std::byte* block, size_t begin, size_t end) {
  const Floats d;
  constexpr size_t kVectorBytes = kVectorLanes * sizeof(float);
  const auto none = hn::Set(d, kMinusInfinity);
  FourVectors maxima{none, none, none, none};
  for (size_t column = begin; column < end; column += 4 * kVectorLanes) {
    const std::byte* source = block + column * sizeof(float);
    maxima.v0 = hn::Max(LoadFloat32::Load(d, source), maxima.v0);
    maxima.v1 = hn::Max(LoadFloat32::Load(d, source + kVectorBytes), maxima.v1);
    maxima.v2 = hn::Max(LoadFloat32::Load(d, source + 2 * kVectorBytes), maxima.v2);
    maxima.v3 = hn::Max(LoadFloat32::Load(d, source + 3 * kVectorBytes), maxima.v3);
  }
  const auto maximum = hn::Max(hn::Max(maxima.v0, maxima.v1), hn::Max(maxima.v2, maxima.v3));
  return hn::GetLane(hn::MaxOfLanes(d, maximum));
}

// Half types are compared as integers, without conversion: as signed ones those of sign + are in
// order, and above all others; as unsigned ones those of sign - are in reverse order.
template <class HalfType>
HWY_INLINE float Maximum(HalfType /*type*/, const std::byte* block, size_t begin, size_t end) {
  const hn::CappedTag<uint16_t, 32> du;
  const hn::CappedTag<int16_t, 32> di;
  constexpr size_t kLanes = hn::MaxLanes(hn::CappedTag<uint16_t, 32>());
  auto positive0 = hn::Set(di, int16_t{-1});
  auto positive1 = positive0;
  auto negative0 = hn::Set(du, uint16_t{0xffff});
  auto negative1 = negative0;
  for (size_t column = begin; column < end; column += 2 * kLanes) {
    const auto halves0 = LoadUnaligned(du, block + 2 * column);
    const auto halves1 = LoadUnaligned(du, block + 2 * (column + kLanes));
    positive0 = hn::Max(positive0, hn::BitCast(di, halves0));
    positive1 = hn::Max(positive1, hn::BitCast(di, halves1));
    negative0 = hn::Min(negative0, halves0);
    negative1 = hn::Min(negative1, halves1);
  }
  const auto positive = hn::Max(positive0, positive1);
  const auto negative = hn::Min(negative0, negative1);
  const auto none_positive = hn::Lt(positive, hn::Zero(di));
  HWY_ALIGN uint16_t maxima[kLanes];
  hn::Store(hn::BitCast(du, hn::IfThenElse(none_positive, hn::BitCast(di, negative), positive)), du,
            maxima);

  const Floats d;
  auto maximum = hn::Set(d, kMinusInfinity);
  for (size_t lane = 0; lane < kLanes; lane += kVectorLanes) {
    const auto* source = reinterpret_cast<const std::byte*>(maxima + lane);
    maximum = hn::Max(HalfType::Load(d, source), maximum);
  }
  return hn::GetLane(hn::MaxOfLanes(d, maximum));
}

// The terms of the columns [begin, end) of a block, multiples of 64: 64 running sums, then a tree.
// NaN if a logit is.
template <class Logits>
HWY_INLINE float Sum(const std::byte* block, size_t begin, size_t end, float reference) {
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
    for (size_t column = begin; column < end; column += kRunningSums) {
      const std::byte* source = block + (column + group * 4 * kVectorLanes) * kLogitBytes;
      // Maximum will read it soon, and would wait for memory, where this loop waits for arithmetic.
      for (size_t line = 0; line < 4 * kVectorBytes; line += 64) {
        hwy::Prefetch(source + kPrefetchBytes + line);
      }
      const FourVectors logits{Logits::Load(d, source), Logits::Load(d, source + kVectorBytes),
                               Logits::Load(d, source + 2 * kVectorBytes),
                               Logits::Load(d, source + 3 * kVectorBytes)};
      sum = Add(sum, TwiceExp(d, Sub(logits, subtrahend)));
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

// Adds the columns [begin, end) of a block, multiples of 64; false if they hold NaN or +inf.
template <class Logits>
HWY_INLINE bool AddColumns(const std::byte* block, size_t begin, size_t end, ExpSum& sum) {
  const float maximum = Maximum(Logits(), block, begin, end);
  if (maximum == kMinusInfinity) {
    // Rare: is all of it -inf, or did the maximum pass over a NaN?
    const LogitRow row{Logits::kType, block, kVocabularyBlock, 0};
    for (size_t column = begin; column < end; ++column) {
      if (LogitAt(row, static_cast<int32_t>(column)) != kMinusInfinity) return false;
    }
    return true;
  }
  if (!(maximum < std::numeric_limits<float>::infinity())) return false;
  const float reference = BlockReference(maximum);
  const float block_sum = Sum<Logits>(block, begin, end, reference);
  if (!(block_sum >= 0.0f)) return false;
  sum.AddBlock(reference, block_sum);
  return true;
}

// A block of which the row holds only the columns [begin, end): the others are -inf, and add 0.
template <class Logits>
HWY_NOINLINE bool AddPartialBlock(const LogitRow& row, int32_t begin, int32_t end, ExpSum& sum) {
  const Floats d;
  constexpr auto kLanes = static_cast<int32_t>(kVectorLanes);
  HWY_ALIGN float block[kVocabularyBlock];
  const size_t first = (row.vocabulary_offset + begin) % kVocabularyBlock;
  const size_t first_row = first / kRunningSums * kRunningSums;
  const size_t end_row = hwy::RoundUpTo(first + (end - begin), kRunningSums);
  for (size_t i = first_row; i < end_row; i += kVectorLanes) {
    hn::Store(hn::Set(d, kMinusInfinity), d, block + i);
  }
  float* target = block + first;
  int32_t column = begin;
  for (; column + kLanes <= end; column += kLanes, target += kLanes) {
    hn::StoreU(Logits::Load(d, row.data + size_t(column) * LogitBytes(Logits::kType)), d, target);
  }
  for (; column < end; ++column, ++target) *target = LogitAt(row, column);
  return AddColumns<LoadFloat32>(reinterpret_cast<const std::byte*>(block), first_row, end_row,
                                 sum);
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
            ? AddColumns<Logits>(row.data + size_t(begin) * LogitBytes(Logits::kType), 0,
                                 kVocabularyBlock, sum)
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
