// AddStatistics on vectors: the same integers as AddStatisticsOneByOne.
//
// It runs after every decision, so it must be fast. The bits of a value's exponent give its bucket,
// as one byte, and bytes are counted 16 to 64 at a time. Rare values (clipped or large ratios;
// envelopes below 1) are handled separately.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/numerics/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/decide/simd_statistics.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/decide/statistics.h"
#if HWY_TARGET != HWY_SCALAR
#include "kernels/numerics/simd_math-inl.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR

void AddAll(const DecidedPositions& positions, const Sums& /*sums*/, Statistics& statistics) {
  AddStatisticsOneByOne(positions, statistics);
}

#else

// Number of vectors processed together. Their steps are independent, and their buckets together
// fill a vector of bytes.
constexpr size_t kVectors = 4;
constexpr size_t kStep = kVectors * kLanes;
// Positions per block. 32-bit sums, and counts in bytes of at least 16 lanes, don't overflow.
constexpr size_t kBlock = 1024;
// The largest weight whose square, and the largest product, that is summed in 32 bits.
constexpr float kSmallWeight = 4.0f;
constexpr float kSmallProduct = 16.0f;
// The bucket of a position that doesn't count, and the amount that its ratio adds, because it is
// taken as 1.
constexpr int32_t kNoBucket = 255;
constexpr int32_t kOne = 1 << 16;

// The bucket of each position of a block, in any order. Values outside the counted buckets have the
// last bucket or no bucket.
struct Buckets {
  HWY_ALIGN uint8_t abs_log_ratio[kBlock];
  HWY_ALIGN uint8_t log_envelope[kBlock];
  HWY_ALIGN uint8_t residual_mass[kBlock];
  HWY_ALIGN uint8_t acceptance_probability[kBlock];
};

// The arrays of kStep positions or more.
struct Arrays {
  const Decision* decisions;
  const float* log_ratios;
  const float* log_envelopes;
  const float* covered_masses;
  const float* acceptance_probabilities;
  const float* advantages;  // or null
};

HWY_INLINE int64_t Total(Int32s sum) { return hn::GetLane(hn::SumOfLanes(Int32Tag(), sum)); }

HWY_INLINE Int32s CountedWeights(Floats x) { return hn::NearestInt(hn::Mul(x, Constant(0x1p16f))); }

HWY_INLINE Int32s Where(Mask mask, Int32s values) {
  return hn::IfThenElseZero(hn::RebindMask(Int32Tag(), mask), values);
}

// Returns the sum of CountedWeight over the lanes in the mask, for large values: at most 2^20 each.
HWY_NOINLINE int64_t SumOfLarge(Floats x, Mask mask) {
  HWY_ALIGN float values[kLanes];
  hn::Store(hn::IfThenElseZero(mask, x), FloatTag(), values);
  int64_t sum = 0;
  for (const float value : values) sum += CountedWeight(value);
  return sum;
}

// Returns the bucket of x >= 0; negative below the first one.
HWY_INLINE Int32s PowerBuckets(Floats x, int first_exponent) {
  // Takes the exponent of the next lower float, because a bound belongs to the bucket below it.
  const Int32s offset = hn::Set(Int32Tag(), ((126 + first_exponent) << 23) + 1);
  return hn::ShiftRight<23>(hn::Sub(hn::BitCast(Int32Tag(), x), offset));
}

HWY_INLINE void StoreBuckets(const Int32s (&buckets)[kVectors], uint8_t* into) {
  // Saturates values that don't fit.
  const hn::Repartition<int16_t, Int32Tag> d16;
  const hn::Rebind<uint8_t, decltype(d16)> d8;
  hn::StoreU(hn::DemoteTo(d8, hn::ReorderDemote2To(d16, buckets[0], buckets[1])), d8, into);
  hn::StoreU(hn::DemoteTo(d8, hn::ReorderDemote2To(d16, buckets[2], buckets[3])), d8,
             into + 2 * kLanes);
}

// The decisions and log w of kLanes positions.
struct Decided {
  Mask unscored;
  Mask accepted;
  Floats log_ratio;  // 0 where it doesn't count
};

HWY_INLINE Decided LoadDecided(const Arrays& arrays, size_t i) {
  const FloatTag d;
  const Int32Tag di;
  const Int32s decisions =
      hn::PromoteTo(di, hn::LoadU(hn::Rebind<uint8_t, FloatTag>(),
                                  reinterpret_cast<const uint8_t*>(arrays.decisions + i)));
  const auto code = [](Decision decision)
                        HWY_ATTR { return hn::Set(Int32Tag(), static_cast<int32_t>(decision)); };
  const Mask unscored = hn::RebindMask(d, hn::Gt(decisions, code(Decision::kOutsideTopK)));
  // Positions that don't count may hold any value.
  return {unscored, hn::RebindMask(d, hn::Eq(decisions, code(Decision::kAccepted))),
          hn::IfThenZeroElse(unscored, LoadFloats(arrays.log_ratios + i))};
}

HWY_INLINE Mask IsClipped(Floats ratio) {
  return hn::Or(hn::Lt(ratio, Constant(kClipLow)), hn::Gt(ratio, Constant(kClipHigh)));
}

// The first positions of the vectors of a block with rare lanes.
struct NotedVectors {
  size_t count = 0;
  uint16_t first[kBlock / kLanes + 1];

  // Branchless, because branches would be mispredicted.
  HWY_INLINE void Note(size_t i, Mask rare) {
    first[count] = static_cast<uint16_t>(i);
    count += hn::AllFalse(FloatTag(), rare) ? 0 : 1;
  }
};

// Returns the sum of -log M over the positions of these vectors where it is negative.
HWY_INLINE int64_t SumOfNegativeEnvelopes(const Arrays& arrays, const NotedVectors& vectors) {
  Int32s high = hn::Zero(Int32Tag());
  Int32s low = high;
  for (size_t j = 0; j < vectors.count; ++j) {
    const Mask unscored = LoadDecided(arrays, vectors.first[j]).unscored;
    const Floats envelope = LoadFloats(arrays.log_envelopes + vectors.first[j]);
    const Floats negated = hn::Max(hn::Neg(envelope), hn::Zero(FloatTag()));
    const SplitFixed fixed =
        ToFixed(hn::IfThenZeroElse(unscored, hn::Min(negated, Constant(64.0f))));
    high = hn::Add(high, fixed.high);
    low = hn::Add(low, fixed.low);
  }
  return (Total(high) << 16) + Total(low);
}

// Sums over the vectors with clipped or large ratios.
struct ClippedSums {
  std::array<int64_t, kRatioBounds.size()> beyond = {};
  int64_t zeroed = 0;
  int64_t kept_zeroed = 0;
  // The difference that clipping makes to the weight, and the sum of |log w|.
  int64_t clipped_weight = 0;
  int64_t clipped_weight_squared = 0;
  int64_t abs_log_ratio = 0;
  // The additional amount of weights above kSmallWeight.
  int64_t large_weight = 0;
  int64_t large_weight_squared = 0;
  int64_t large_kept_weight = 0;
  int64_t large_kept_weight_squared = 0;

  HWY_INLINE void Add(const Arrays& arrays, const NotedVectors& vectors) {
    const FloatTag d;
    Int32s weights = hn::Zero(Int32Tag());
    Int32s squares = weights;
    Int32s high = weights;
    Int32s low = weights;
    size_t counts[kRatioBounds.size()] = {};
    static_assert(kRatioBounds.size() == 6);
    for (size_t j = 0; j < vectors.count; ++j) {
      const Decided decided = LoadDecided(arrays, vectors.first[j]);
      const Floats ratio = ExpAtMost88(LimitTo88(decided.log_ratio));
      CountBeyond<0>(ratio, counts);
      CountBeyond<1>(ratio, counts);
      CountBeyond<2>(ratio, counts);
      CountBeyond<3>(ratio, counts);
      CountBeyond<4>(ratio, counts);
      CountBeyond<5>(ratio, counts);
      const Mask is_clipped = IsClipped(ratio);
      const Floats small = hn::Min(ratio, Constant(kSmallWeight));
      const Floats clipped = hn::Min(hn::Max(ratio, Constant(kClipLow)), Constant(kClipHigh));
      const auto more = [&](Floats counted, Floats instead_of) HWY_ATTR {
        return Where(is_clipped, hn::Sub(CountedWeights(counted), CountedWeights(instead_of)));
      };
      weights = hn::Add(weights, more(clipped, small));
      squares = hn::Add(squares, more(hn::Mul(clipped, clipped), hn::Mul(small, small)));
      const SplitFixed fixed = ToFixed(hn::Min(hn::Abs(decided.log_ratio), Constant(64.0f)));
      high = hn::Add(high, Where(is_clipped, fixed.high));
      low = hn::Add(low, Where(is_clipped, fixed.low));

      const Mask zero = hn::Eq(ratio, hn::Zero(d));
      if (!hn::AllFalse(d, zero)) {
        zeroed += static_cast<int64_t>(hn::CountTrue(d, zero));
        kept_zeroed += static_cast<int64_t>(hn::CountTrue(d, hn::AndNot(decided.accepted, zero)));
      }
      const Mask large = hn::Gt(ratio, Constant(kSmallWeight));
      if (!hn::AllFalse(d, large)) AddLarge(ratio, large, hn::AndNot(decided.accepted, large));
    }
    clipped_weight += Total(weights);
    clipped_weight_squared += Total(squares);
    abs_log_ratio += (Total(high) << 16) + Total(low);
    for (size_t bound = 0; bound < kRatioBounds.size(); ++bound) {
      beyond[bound] += static_cast<int64_t>(counts[bound]);
    }
  }

 private:
  template <size_t kBound>
  static HWY_INLINE void CountBeyond(Floats ratio, size_t (&counts)[kRatioBounds.size()]) {
    const Floats limit = Constant(static_cast<float>(kRatioBounds[kBound]));
    if constexpr (kRatioBounds[kBound] < 1) {
      counts[kBound] += hn::CountTrue(FloatTag(), hn::Lt(ratio, limit));
    } else {
      counts[kBound] += hn::CountTrue(FloatTag(), hn::Gt(ratio, limit));
    }
  }
  HWY_NOINLINE void AddLarge(Floats ratio, Mask large, Mask kept) {
    const FloatTag d;
    const Floats limited = hn::Min(ratio, Constant(kLargestCountedWeight));
    const Floats squared = hn::Mul(limited, limited);
    const auto counted = [&](Mask mask, float small) HWY_ATTR {
      return static_cast<int64_t>(hn::CountTrue(d, mask)) * CountedWeight(small);
    };
    constexpr float kSmallSquared = kSmallWeight * kSmallWeight;
    large_weight += SumOfLarge(limited, large) - counted(large, kSmallWeight);
    large_weight_squared += SumOfLarge(squared, large) - counted(large, kSmallSquared);
    large_kept_weight += SumOfLarge(limited, kept) - counted(kept, kSmallWeight);
    large_kept_weight_squared += SumOfLarge(squared, kept) - counted(kept, kSmallSquared);
  }
};

// Sums of products with advantages above kSmallProduct.
struct LargeProducts {
  int64_t plain = 0;
  int64_t clipped = 0;
  int64_t applied = 0;
};

// The sums of a block. Stays in registers.
class BlockSums {
 public:
  HWY_INLINE BlockSums()
      : weight_(hn::Zero(Int32Tag())),
        weight_squared_(weight_),
        applied_weight_(weight_),
        applied_weight_squared_(weight_),
        gradient_mass_(weight_),
        clipped_gradient_mass_(weight_),
        applied_gradient_mass_(weight_) {}

  // Adds the kStep positions from i on.
  HWY_INLINE void Add(const Arrays& arrays, size_t i, Buckets& buckets, size_t to,
                      NotedVectors& clipped, NotedVectors& negative, LargeProducts& large) {
    const FloatTag d;
    const Int32Tag di;
    Floats log_ratios[kVectors];
    Mask unscored[kVectors];
    Mask accepted[kVectors];
    for (size_t v = 0; v < kVectors; ++v) {
      const Decided decided = LoadDecided(arrays, i + v * kLanes);
      log_ratios[v] = decided.log_ratio;
      unscored[v] = decided.unscored;
      accepted[v] = decided.accepted;
    }
    const FourFloats all = {{log_ratios[0], log_ratios[1]}, {log_ratios[2], log_ratios[3]}};
    const FourFloats exponentials =
        ExpAtMost88(FourFloats{{LimitTo88(all.first.first), LimitTo88(all.first.second)},
                               {LimitTo88(all.second.first), LimitTo88(all.second.second)}});
    const Floats ratios[kVectors] = {exponentials.first.first, exponentials.first.second,
                                     exponentials.second.first, exponentials.second.second};

    const auto store = [&](uint8_t* into, const auto& bucket_of) HWY_ATTR {
      Int32s of_vector[kVectors];
      for (size_t v = 0; v < kVectors; ++v) {
        of_vector[v] = hn::IfThenElse(hn::RebindMask(di, unscored[v]), hn::Set(di, kNoBucket),
                                      bucket_of(v, i + v * kLanes));
      }
      StoreBuckets(of_vector, into + to);
    };
    store(buckets.abs_log_ratio, [&](size_t v, size_t) HWY_ATTR {
      return PowerBuckets(hn::Abs(log_ratios[v]), kFirstNatsExponent);
    });
    store(buckets.log_envelope, [&](size_t v, size_t at) HWY_ATTR {
      const Floats log_envelope = LoadFloats(arrays.log_envelopes + at);
      negative.Note(at, hn::AndNot(unscored[v], hn::Lt(log_envelope, hn::Zero(d))));
      return PowerBuckets(hn::Max(log_envelope, hn::Zero(d)), kFirstNatsExponent);
    });
    store(buckets.residual_mass, [&](size_t, size_t at) HWY_ATTR {
      const Floats residual = hn::Sub(Constant(1.0f), LoadFloats(arrays.covered_masses + at));
      return PowerBuckets(hn::Max(residual, hn::Zero(d)), kFirstMassExponent);
    });
    store(buckets.acceptance_probability, [&](size_t, size_t at) HWY_ATTR {
      return Truncate(
          hn::Ceil(hn::Mul(LoadFloats(arrays.acceptance_probabilities + at), Constant(16.0f))));
    });

    for (size_t v = 0; v < kVectors; ++v) {
      const Floats small = hn::Min(ratios[v], Constant(kSmallWeight));
      const Int32s weight = CountedWeights(small);
      const Int32s squared = CountedWeights(hn::Mul(small, small));
      const auto is_accepted = hn::RebindMask(di, accepted[v]);
      weight_ = hn::Add(weight_, weight);
      weight_squared_ = hn::Add(weight_squared_, squared);
      applied_weight_ =
          hn::Add(applied_weight_, hn::IfThenElse(is_accepted, hn::Set(di, kOne), weight));
      applied_weight_squared_ =
          hn::Add(applied_weight_squared_, hn::IfThenElse(is_accepted, hn::Set(di, kOne), squared));
      accepted_touched_ +=
          hn::CountTrue(d, hn::And(accepted[v], hn::Ne(ratios[v], Constant(1.0f))));
      clipped.Note(i + v * kLanes, IsClipped(ratios[v]));
    }
    if (arrays.advantages == nullptr) return;
    for (size_t v = 0; v < kVectors; ++v) {
      AddGradients(ratios[v], hn::Abs(LoadFloats(arrays.advantages + i + v * kLanes)),
                   hn::Not(unscored[v]), accepted[v], large);
    }
  }

  // Positions that don't count add a weight of 1.
  HWY_INLINE void AddTo(const ClippedSums& clipped, const LargeProducts& large,
                        Statistics& statistics) const {
    AddEach(clipped.beyond, statistics.ratios_beyond);
    const int64_t weight = Total(weight_);
    const int64_t weight_squared = Total(weight_squared_);
    statistics.plain += {.zeroed = clipped.zeroed,
                         .weight = weight + clipped.large_weight,
                         .weight_squared = weight_squared + clipped.large_weight_squared,
                         .gradient_mass = Total(gradient_mass_) + large.plain};
    // The clipped weight is w within the bounds, and otherwise the bound.
    const int64_t below = clipped.beyond[1];
    const int64_t above = clipped.beyond[2];
    statistics.clipped +=
        {.touched = below + above,
         .weight = weight + clipped.clipped_weight,
         .weight_squared = weight_squared + clipped.clipped_weight_squared,
         .abs_log_weight = below * Fixed(-LogOfWeight(kClipLow)) +
                           above * Fixed(LogOfWeight(kClipHigh)) - clipped.abs_log_ratio,
         .gradient_mass = Total(clipped_gradient_mass_) + large.clipped};
    statistics.applied +=
        {.touched = static_cast<int64_t>(accepted_touched_),
         .zeroed = clipped.kept_zeroed,
         .weight = Total(applied_weight_) + clipped.large_kept_weight,
         .weight_squared = Total(applied_weight_squared_) + clipped.large_kept_weight_squared,
         .gradient_mass = Total(applied_gradient_mass_) + large.applied};
  }

 private:
  HWY_INLINE void AddGradients(Floats ratio, Floats abs_advantage, Mask scored, Mask accepted,
                               LargeProducts& large) {
    const Floats clipped = hn::Min(hn::Max(ratio, Constant(kClipLow)), Constant(kClipHigh));
    const Floats modified = hn::IfThenElse(accepted, Constant(1.0f), ratio);
    AddProducts(ratio, abs_advantage, scored, gradient_mass_, large.plain);
    AddProducts(clipped, abs_advantage, scored, clipped_gradient_mass_, large.clipped);
    AddProducts(modified, abs_advantage, scored, applied_gradient_mass_, large.applied);
  }
  static HWY_INLINE void AddProducts(Floats weight, Floats abs_advantage, Mask scored, Int32s& sum,
                                     int64_t& large_sum) {
    const FloatTag d;
    const Floats product = hn::IfThenElseZero(
        scored, hn::Min(hn::Mul(weight, abs_advantage), Constant(kLargestCountedWeight)));
    const Mask small = hn::Le(product, Constant(kSmallProduct));
    sum = hn::Add(sum, Where(small, CountedWeights(product)));
    if (HWY_UNLIKELY(!hn::AllTrue(d, small))) large_sum += SumOfLarge(product, hn::Not(small));
  }

  size_t accepted_touched_ = 0;
  Int32s weight_;
  Int32s weight_squared_;
  Int32s applied_weight_;
  Int32s applied_weight_squared_;
  Int32s gradient_mass_;
  Int32s clipped_gradient_mass_;
  Int32s applied_gradient_mass_;
};

// Counts the bytes by bucket, except the last bucket. `size` is a multiple of 64, at most kBlock.
template <size_t kCounts>
void CountBytes(const uint8_t* bytes, size_t size, std::array<int64_t, kCounts>& counts) {
  const hn::CappedTag<uint8_t, 64> d8;
  for (size_t value = 0; value + 1 < kCounts; ++value) {
    const auto wanted = hn::Set(d8, static_cast<uint8_t>(value));
#if HWY_TARGET <= HWY_AVX3
    size_t count = 0;
    for (size_t i = 0; i < size; i += hn::Lanes(d8)) {
      count += hn::CountTrue(d8, hn::Eq(hn::Load(d8, bytes + i), wanted));
    }
#else
    const hn::RepartitionToWide<hn::RepartitionToWide<hn::RepartitionToWide<decltype(d8)> > > d64;
    auto equal = hn::Zero(d8);
    for (size_t i = 0; i < size; i += hn::Lanes(d8)) {
      // True is -1.
      equal = hn::Sub(equal, hn::VecFromMask(d8, hn::Eq(hn::Load(d8, bytes + i), wanted)));
    }
    const auto count = hn::GetLane(hn::SumOfLanes(d64, hn::SumsOf8(equal)));
#endif
    counts[value] += static_cast<int64_t>(count);
  }
}

// Sets the last bucket to the scored positions that are in no earlier bucket.
template <size_t kCounts>
void CompleteCounts(int64_t scored, std::array<int64_t, kCounts>& counts) {
  counts.back() = scored;
  for (size_t value = 0; value + 1 < kCounts; ++value) counts.back() -= counts[value];
}

// Adds positions. Returns their number, including those that pad the last step.
size_t AddBlock(const Arrays& arrays, size_t count, Statistics& statistics) {
  Buckets buckets;
  BlockSums sums;
  ClippedSums clipped;
  NotedVectors with_clipped;
  NotedVectors with_negative;
  LargeProducts large;
  size_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    sums.Add(arrays, i, buckets, i, with_clipped, with_negative, large);
  }
  clipped.Add(arrays, with_clipped);
  statistics.negative_log_envelope += SumOfNegativeEnvelopes(arrays, with_negative);
  if (i < count) {
    // Copies the last positions to arrays that are long enough.
    Decision decisions[kStep];
    std::fill(decisions, decisions + kStep, Decision::kMasked);
    float floats[5][kStep] = {};
    const size_t left = count - i;
    const auto copy = [&](const auto* from, auto* to) {
      std::memcpy(to, from + i, left * sizeof(*to));
      return to;
    };
    const Arrays last = {
        copy(arrays.decisions, decisions),
        copy(arrays.log_ratios, floats[0]),
        copy(arrays.log_envelopes, floats[1]),
        copy(arrays.covered_masses, floats[2]),
        copy(arrays.acceptance_probabilities, floats[3]),
        arrays.advantages == nullptr ? nullptr : copy(arrays.advantages, floats[4])};
    with_clipped.count = 0;
    with_negative.count = 0;
    sums.Add(last, 0, buckets, i, with_clipped, with_negative, large);
    clipped.Add(last, with_clipped);
    statistics.negative_log_envelope += SumOfNegativeEnvelopes(last, with_negative);
    i += kStep;
  }
  const size_t size = (i + 63) / 64 * 64;
  const auto count_bytes = [&](uint8_t* bytes, auto& counts) {
    std::memset(bytes + i, kNoBucket, size - i);
    CountBytes(bytes, size, counts);
  };
  count_bytes(buckets.abs_log_ratio, statistics.abs_log_ratio);
  count_bytes(buckets.log_envelope, statistics.log_envelope);
  count_bytes(buckets.residual_mass, statistics.residual_mass);
  count_bytes(buckets.acceptance_probability, statistics.acceptance_probability);
  sums.AddTo(clipped, large, statistics);
  return i;
}

void AddAll(const DecidedPositions& positions, const Sums& sums, Statistics& statistics) {
  const size_t end = positions.decisions.size();
  Statistics added;
  size_t lanes = 0;
  for (size_t first = 0; first < end; first += kBlock) {
    const Arrays arrays = {
        positions.decisions.data() + first,
        positions.log_ratios.data() + first,
        positions.log_envelopes.data() + first,
        positions.covered_masses.data() + first,
        positions.acceptance_probabilities.data() + first,
        positions.advantages.empty() ? nullptr : positions.advantages.data() + first};
    lanes += AddBlock(arrays, std::min(kBlock, end - first), added);
  }
  const int64_t scored = sums.scored();
  CompleteCounts(scored, added.abs_log_ratio);
  CompleteCounts(scored, added.log_envelope);
  CompleteCounts(scored, added.residual_mass);
  CompleteCounts(scored, added.acceptance_probability);
  const int64_t unscored = (static_cast<int64_t>(lanes) - scored) * kOne;
  for (CorrectionSums* correction : {&added.plain, &added.clipped, &added.applied}) {
    correction->positions = scored;
    correction->weight -= unscored;
    correction->weight_squared -= unscored;
  }
  // The sums already contain |log w|. Where w is 0 they count the maximum, which is omitted here.
  constexpr int64_t kMax = int64_t{64} << 30;
  added.plain.abs_log_weight = sums.d - added.plain.zeroed * kMax;
  added.clipped.abs_log_weight += sums.d;
  added.applied.abs_log_weight = sums.d_sis - added.applied.zeroed * kMax;
  statistics += added;
}

#endif  // HWY_TARGET

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sis {

HWY_EXPORT(AddAll);

void AddStatistics(const DecidedPositions& positions, const Sums& sums, Statistics& statistics) {
  HWY_DYNAMIC_DISPATCH(AddAll)(positions, sums, statistics);
}

}  // namespace sis
#endif
