// The sum of a row of logits on vectors: blocks of 1024 columns, each in 64 running sums.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/decide/dense/dense_row.h"
#include "kernels/numerics/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/decide/dense/dense_simd.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#if HWY_TARGET != HWY_SCALAR
#include "kernels/numerics/simd_math-inl.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR

bool SumLogits(const LogitRow& row, ExpSum& sum) { return SumRowScalar(row, sum); }

#else

constexpr size_t kPrefetchBytes = 8192;  // ahead of what is read
constexpr size_t kRunningSums = 64;      // of a block: id mod 64 says which

// One per logit type: Load gives kLanes consecutive logits.
struct Float32Logits {
  static constexpr LogitType kType = LogitType::kFloat32;
  static HWY_INLINE Floats Load(const std::byte* source) {
    return LoadFloats(reinterpret_cast<const float*>(source));
  }
};

struct Bfloat16Logits {
  static constexpr LogitType kType = LogitType::kBfloat16;
  static HWY_INLINE Floats Load(const std::byte* source) {
    const hn::Rebind<uint16_t, FloatTag> d16;
    const auto halves = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(source));
    return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(hn::PromoteTo(Uint32Tag(), halves)));
  }
};

// Four vectors of consecutive logits: as many independent chains keep the processor busy.
template <class Logits>
HWY_INLINE FourFloats LoadFour(const std::byte* source) {
  constexpr size_t kBytes = kLanes * LogitBytes(Logits::kType);
  return {{Logits::Load(source), Logits::Load(source + kBytes)},
          {Logits::Load(source + 2 * kBytes), Logits::Load(source + 3 * kBytes)}};
}

// NaN, or NaN lanes are passed over; hn::MaxOfLanes may lose the number beside one.
HWY_INLINE float LargestLane(Floats v) {
  HWY_ALIGN float lanes[kLanes];
  hn::Store(v, FloatTag(), lanes);
  return *std::max_element(lanes, lanes + kLanes);
}

// The largest of the logits in the columns [begin, end) of a block, multiples of 64. If one is NaN,
// the result is +inf or above, or NaN, or as if that logit weren't there.
HWY_INLINE float Maximum(Float32Logits /*type*/, const std::byte* block, size_t end) {
  const Floats none = Constant(kMinusInfinity);
  FourFloats maxima{{none, none}, {none, none}};
  for (size_t column = 0; column < end; column += 4 * kLanes) {
    const FourFloats logits = LoadFour<Float32Logits>(block + column * sizeof(float));
    maxima.first.first = hn::Max(logits.first.first, maxima.first.first);
    maxima.first.second = hn::Max(logits.first.second, maxima.first.second);
    maxima.second.first = hn::Max(logits.second.first, maxima.second.first);
    maxima.second.second = hn::Max(logits.second.second, maxima.second.second);
  }
  const Floats maximum = hn::Max(hn::Max(maxima.first.first, maxima.first.second),
                                 hn::Max(maxima.second.first, maxima.second.second));
  return LargestLane(maximum);
}

// Halves are compared as integers, without conversion: as signed ones those of sign + are in order,
// and above all others; as unsigned ones those of sign - are in reverse order.
HWY_INLINE float Maximum(Bfloat16Logits /*type*/, const std::byte* block, size_t end) {
  const hn::CappedTag<uint16_t, 32> du;
  const hn::CappedTag<int16_t, 32> di;
  constexpr size_t kHalves = hn::MaxLanes(hn::CappedTag<uint16_t, 32>());
  auto positive0 = hn::Set(di, int16_t{-1});
  auto positive1 = positive0;
  auto negative0 = hn::Set(du, uint16_t{0xffff});
  auto negative1 = negative0;
  const auto* logits = reinterpret_cast<const uint16_t*>(block);
  for (size_t column = 0; column < end; column += 2 * kHalves) {
    const auto halves0 = hn::LoadU(du, logits + column);
    const auto halves1 = hn::LoadU(du, logits + column + kHalves);
    positive0 = hn::Max(positive0, hn::BitCast(di, halves0));
    positive1 = hn::Max(positive1, hn::BitCast(di, halves1));
    negative0 = hn::Min(negative0, halves0);
    negative1 = hn::Min(negative1, halves1);
  }
  const auto positive = hn::Max(positive0, positive1);
  const auto negative = hn::Min(negative0, negative1);
  const auto none_positive = hn::Lt(positive, hn::Zero(di));
  HWY_ALIGN uint16_t maxima[kHalves];
  hn::Store(hn::BitCast(du, hn::IfThenElse(none_positive, hn::BitCast(di, negative), positive)), du,
            maxima);
  Floats maximum = Constant(kMinusInfinity);
  for (size_t lane = 0; lane < kHalves; lane += kLanes) {
    maximum =
        hn::Max(Bfloat16Logits::Load(reinterpret_cast<const std::byte*>(maxima + lane)), maximum);
  }
  return LargestLane(maximum);
}

// Adds the upper half of the lanes to the lower one until one is left.
template <class D>
HWY_INLINE float SumTree(D /*d*/, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(D()) > 1) {
    const hn::Half<D> half;
    return SumTree(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  } else {
    return hn::GetLane(v);
  }
}

// The terms of the columns [0, end) of a block, end a multiple of 64: 64 running sums, then a tree.
// NaN if a logit is.
template <class Logits>
HWY_INLINE float SumTerms(const std::byte* block, size_t end, float reference) {
  constexpr size_t kLogitBytes = LogitBytes(Logits::kType);
  constexpr size_t kGroups = kRunningSums / (4 * kLanes);
  const Floats subtrahend = Constant(reference);
  // Four vectors of running sums at a time; the columns of one running sum lie 64 apart.
  FourFloats groups[kGroups];
  for (size_t group = 0; group < kGroups; ++group) {
    const Floats zero = hn::Zero(FloatTag());
    FourFloats sum{{zero, zero}, {zero, zero}};
    for (size_t column = 0; column < end; column += kRunningSums) {
      const std::byte* source = block + (column + group * 4 * kLanes) * kLogitBytes;
      // Maximum will read it soon, and would wait for memory, where this loop waits for arithmetic.
      for (size_t line = 0; line < 4 * kLanes * kLogitBytes; line += 64) {
        hwy::Prefetch(source + kPrefetchBytes + line);
      }
      sum = Add(sum, ExpAtMost88(Sub(LoadFour<Logits>(source), subtrahend)));
    }
    groups[group] = sum;
  }
  for (size_t half = kGroups / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) groups[i] = Add(groups[i], groups[i + half]);
  }
  const TwoFloats two = Add(groups[0].first, groups[0].second);
  return SumTree(FloatTag(), hn::Add(two.first, two.second));
}

// Adds the columns [0, end) of a block, end a multiple of 64; false if they hold NaN or +inf.
template <class Logits>
HWY_INLINE bool AddColumns(const std::byte* block, size_t end, ExpSum& sum) {
  const float maximum = Maximum(Logits(), block, end);
  if (maximum == kMinusInfinity) {
    // Rare: is all of it -inf, or did the maximum pass over a NaN?
    const LogitRow row{Logits::kType, block, kVocabularyBlock};
    for (size_t column = 0; column < end; ++column) {
      if (LogitAt(row, static_cast<int32_t>(column)) != kMinusInfinity) return false;
    }
    return true;
  }
  if (!(maximum < std::numeric_limits<float>::infinity())) return false;
  const float reference = BlockReference(maximum);
  const float block_sum = SumTerms<Logits>(block, end, reference);
  if (!(block_sum >= 0.0f)) return false;
  sum.AddBlock(reference, block_sum);
  return true;
}

// The last block, from column `begin` of the row on, up to a multiple of 64 columns: those that the
// row doesn't have are -inf, and add 0.
template <class Logits>
HWY_NOINLINE bool AddLastBlock(const LogitRow& row, int32_t begin, ExpSum& sum) {
  constexpr auto kStep = static_cast<int32_t>(kLanes);
  HWY_ALIGN float block[kVocabularyBlock];
  const size_t end = hwy::RoundUpTo(row.vocabulary_size - begin, kRunningSums);
  std::fill_n(block, end, kMinusInfinity);
  float* target = block;
  int32_t column = begin;
  for (; column + kStep <= row.vocabulary_size; column += kStep, target += kStep) {
    const std::byte* source = row.data + size_t(column) * LogitBytes(Logits::kType);
    hn::Store(Logits::Load(source), FloatTag(), target);
  }
  for (; column < row.vocabulary_size; ++column, ++target) *target = LogitAt(row, column);
  return AddColumns<Float32Logits>(reinterpret_cast<const std::byte*>(block), end, sum);
}

template <class Logits>
bool SumLogitsOfType(const LogitRow& row, ExpSum& sum) {
  sum = ExpSum();
  int32_t begin = 0;
  for (; begin + kVocabularyBlock <= row.vocabulary_size; begin += kVocabularyBlock) {
    const std::byte* block = row.data + size_t(begin) * LogitBytes(Logits::kType);
    if (!AddColumns<Logits>(block, kVocabularyBlock, sum)) return false;
  }
  return begin == row.vocabulary_size || AddLastBlock<Logits>(row, begin, sum);
}

bool SumLogits(const LogitRow& row, ExpSum& sum) {
  return row.type == LogitType::kFloat32 ? SumLogitsOfType<Float32Logits>(row, sum)
                                         : SumLogitsOfType<Bfloat16Logits>(row, sum);
}

#endif  // HWY_TARGET

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sis {
namespace {

HWY_EXPORT(SumLogits);

}  // namespace

bool SumRow(const LogitRow& row, ExpSum& sum) { return HWY_DYNAMIC_DISPATCH(SumLogits)(row, sum); }

}  // namespace sis
#endif
