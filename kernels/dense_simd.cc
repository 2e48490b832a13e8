// The dense kernel's rows by Highway, for every instruction set; the best one is chosen at run
// time.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/dense_row.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/dense_simd.cc"  // NOLINT
#include "hwy/foreach_target.h"                     // must come before highway.h
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sis::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// A block has 64 running sums; vectors wider than 16 lanes would gain nothing.
using Floats = hn::CappedTag<float, 16>;
using FloatVector = hn::Vec<Floats>;
constexpr int kLanes = 64;

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

// Exp32 (kernels/exp32.h), operation by operation, for x <= 88. NaN stays NaN.
HWY_INLINE FloatVector Exp(Floats d, FloatVector x) {
  const hn::Rebind<uint32_t, Floats> du;
  const auto round = hn::Set(d, 0x1.8p+23f);
  const auto u = hn::Add(hn::Mul(x, hn::Set(d, 0x1.715476p+0f)), round);
  const auto n = hn::Sub(u, round);
  auto r = hn::Sub(x, hn::Mul(n, hn::Set(d, 0x1.63p-1f)));
  r = hn::Add(r, hn::Mul(n, hn::Set(d, 0x1.bd0106p-13f)));
  auto p = hn::Set(d, 0x1.6a243ap-10f);
  p = hn::Add(hn::Mul(p, r), hn::Set(d, 0x1.1239ep-7f));
  p = hn::Add(hn::Mul(p, r), hn::Set(d, 0x1.5558f2p-5f));
  p = hn::Add(hn::Mul(p, r), hn::Set(d, 0x1.555492p-3f));
  p = hn::Add(hn::Mul(p, r), hn::Set(d, 0x1.fffffcp-2f));
  const auto e = hn::Add(hn::Set(d, 1.0f), hn::Add(r, hn::Mul(hn::Mul(r, r), p)));
  // The low bits of u are n.
  const auto power = hn::ShiftLeft<23>(hn::Add(hn::BitCast(du, u), hn::Set(du, 127u)));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.0f)), hn::Mul(e, hn::BitCast(d, power)));
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

// The terms of a whole block: 64 running sums by id mod 64, then a tree. NaN if a logit is.
template <class Logits>
HWY_INLINE float BlockSum(const std::byte* block, float reference) {
  const Floats d;
  const size_t lanes = hn::Lanes(d);
  const size_t logit_bytes = LogitBytes(Logits::kType);
  const auto subtrahend = hn::Set(d, reference);
  HWY_ALIGN float sums[kLanes];
  // Four vectors of running sums at a time; the columns of one running sum lie 64 apart.
  for (size_t lane = 0; lane < kLanes; lane += 4 * lanes) {
    auto sum0 = hn::Zero(d);
    auto sum1 = sum0;
    auto sum2 = sum0;
    auto sum3 = sum0;
    for (size_t column = lane; column < kVocabularyBlock; column += kLanes) {
      const auto term = [&](size_t offset) HWY_ATTR {
        const auto logits = Logits::Load(d, block + (column + offset) * logit_bytes);
        return Exp(d, hn::Sub(logits, subtrahend));
      };
      sum0 = hn::Add(sum0, term(0));
      sum1 = hn::Add(sum1, term(lanes));
      sum2 = hn::Add(sum2, term(2 * lanes));
      sum3 = hn::Add(sum3, term(3 * lanes));
    }
    hn::Store(sum0, d, sums + lane);
    hn::Store(sum1, d, sums + lane + lanes);
    hn::Store(sum2, d, sums + lane + 2 * lanes);
    hn::Store(sum3, d, sums + lane + 3 * lanes);
  }
  for (size_t half = kLanes / 2; half > 0; half /= 2) {
    const size_t step = std::min(half, lanes);
    const hn::CappedTag<float, 1> d1;
    size_t lane = 0;
    if (step == lanes) {
      for (; lane < half; lane += lanes) {
        hn::Store(hn::Add(hn::Load(d, sums + lane), hn::Load(d, sums + lane + half)), d,
                  sums + lane);
      }
    } else {
      for (; lane < half; ++lane) {
        hn::Store(hn::Add(hn::LoadU(d1, sums + lane), hn::LoadU(d1, sums + lane + half)), d1,
                  sums + lane);
      }
    }
  }
  return sums[0];
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
