// AddStatistics on vectors. It runs after every decision, so it must be fast. The bits of a value's
// exponent give its bucket, as one byte, and bytes are counted 16 to 64 at a time.
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
#include "kernels/numerics/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {
namespace {

// Positions per block, so that sums and counts in bytes don't overflow.
constexpr size_t kBlock = SplitSum::kMaxPositions;
// The bucket of a position that doesn't count.
constexpr int32_t kNoBucket = 255;

// The arrays of kLanes positions or more.
struct Arrays {
  const Decision* decisions;
  const float* log_ratios;
  const float* log_envelopes;
  const float* covered_masses;
  const float* acceptance_probabilities;
  const float* advantages;  // or null
};

// Returns CountedWeight of each lane. The integer part needs no rounding.
HWY_INLINE SplitFixed CountedWeights(Floats x) {
  const Int32s high = Truncate(x);
  const Floats rest = hn::Sub(x, hn::ConvertTo(FloatTag(), high));
  return {high, hn::NearestInt(hn::Mul(rest, Constant(0x1p16f)))};
}

// CorrectionSums of up to kBlock positions.
struct VectorCorrectionSums {
  SplitSum weight;
  SplitSum weight_squared;
  SplitSum abs_log_weight;
  SplitSum gradient_mass;
  size_t touched = 0;
  size_t zeroed = 0;

  // Adds the scored lanes. `abs_advantages` is null if there are none.
  HWY_INLINE void Add(Mask scored, Floats ratio, Floats of, Floats abs_log,
                      const float* advantages) {
    const FloatTag d;
    const Floats limit = Constant(kLargestCountedWeight);
    const Floats counted = hn::IfThenElseZero(scored, hn::Min(of, limit));
    const Mask zero = hn::And(scored, hn::Eq(of, hn::Zero(d)));
    weight.Add(CountedWeights(counted));
    weight_squared.Add(CountedWeights(hn::Mul(counted, counted)));
    abs_log_weight.Add(
        ToFixed(hn::IfThenElseZero(hn::AndNot(zero, scored), hn::Min(abs_log, Constant(64.0f)))));
    touched += hn::CountTrue(d, hn::And(scored, hn::Ne(of, ratio)));
    zeroed += hn::CountTrue(d, zero);
    if (advantages == nullptr) return;
    const Floats product = hn::Mul(of, hn::Abs(LoadFloats(advantages)));
    gradient_mass.Add(CountedWeights(hn::IfThenElseZero(scored, hn::Min(product, limit))));
  }
  void AddTo(size_t scored, CorrectionSums& sums) const {
    sums += {.positions = static_cast<int64_t>(scored),
             .touched = static_cast<int64_t>(touched),
             .zeroed = static_cast<int64_t>(zeroed),
             .weight = weight.Total(),
             .weight_squared = weight_squared.Total(),
             .abs_log_weight = abs_log_weight.Total(),
             .gradient_mass = gradient_mass.Total()};
  }
};

// Counts positions by bucket, one byte each.
template <size_t kBuckets>
struct VectorBuckets {
  HWY_ALIGN uint8_t bytes[kBlock];

  // Stores kLanes buckets, which may be outside of [0, kBuckets), and kNoBucket where unscored.
  HWY_INLINE void Store(Mask scored, Int32s buckets, size_t i) {
    const Int32Tag di;
    const hn::Rebind<uint8_t, Int32Tag> d8;
    const Int32s limited = hn::Min(buckets, hn::Set(di, static_cast<int32_t>(kBuckets - 1)));
    const Int32s stored =
        hn::IfThenElse(hn::RebindMask(di, scored), limited, hn::Set(di, kNoBucket));
    hn::StoreU(hn::DemoteTo(d8, stored), d8, bytes + i);  // negative ones become 0
  }
  // Adds the first `size` positions.
  void AddTo(size_t size, std::array<int64_t, kBuckets>& counts) {
    const hn::CappedTag<uint8_t, 64> d8;
    const hn::RepartitionToWide<hn::RepartitionToWide<hn::RepartitionToWide<decltype(d8)>>> d64;
    const size_t end = (size + hn::Lanes(d8) - 1) / hn::Lanes(d8) * hn::Lanes(d8);
    std::memset(bytes + size, kNoBucket, end - size);
    for (size_t bucket = 0; bucket < kBuckets; ++bucket) {
      const auto wanted = hn::Set(d8, static_cast<uint8_t>(bucket));
      auto equal = hn::Zero(d8);
      for (size_t i = 0; i < end; i += hn::Lanes(d8)) {
        // True is -1.
        equal = hn::Sub(equal, hn::VecFromMask(d8, hn::Eq(hn::Load(d8, bytes + i), wanted)));
      }
      counts[bucket] += static_cast<int64_t>(hn::GetLane(hn::SumOfLanes(d64, hn::SumsOf8(equal))));
    }
  }
};

// Returns the bucket of x >= 0.
HWY_INLINE Int32s PowerBuckets(Floats x, int first_exponent) {
  // Takes the exponent of the next lower float, because a bound belongs to the bucket below it.
  const Int32s offset = hn::Set(Int32Tag(), ((126 + first_exponent) << 23) + 1);
  return hn::ShiftRight<23>(hn::Sub(hn::BitCast(Int32Tag(), x), offset));
}

// Statistics of up to kBlock positions.
class BlockStatistics {
 public:
  // Adds the kLanes positions from `i` on.
  HWY_INLINE void Add(const Arrays& arrays, size_t i) {
    const FloatTag d;
    const Int32Tag di;
    const Floats one = Constant(1.0f);
    const Int32s decisions =
        hn::PromoteTo(di, hn::LoadU(hn::Rebind<uint8_t, FloatTag>(),
                                    reinterpret_cast<const uint8_t*>(arrays.decisions + i)));
    const auto code = [](Decision decision)
                          HWY_ATTR { return hn::Set(Int32Tag(), static_cast<int32_t>(decision)); };
    // Positions that don't count may hold any value.
    const Mask scored = hn::RebindMask(d, hn::Lt(decisions, code(Decision::kMissing)));
    const Mask accepted = hn::RebindMask(d, hn::Eq(decisions, code(Decision::kAccepted)));
    const Floats log_ratio = hn::IfThenElseZero(scored, LoadFloats(arrays.log_ratios + i));
    const Floats log_envelope = LoadFloats(arrays.log_envelopes + i);
    const Floats residual = hn::Sub(one, LoadFloats(arrays.covered_masses + i));
    const Floats a = LoadFloats(arrays.acceptance_probabilities + i);
    const Floats zero = hn::Zero(d);
    abs_log_ratio_.Store(scored, PowerBuckets(hn::Abs(log_ratio), kFirstNatsExponent), size_);
    log_envelope_.Store(scored, PowerBuckets(hn::Max(log_envelope, zero), kFirstNatsExponent),
                        size_);
    residual_mass_.Store(scored, PowerBuckets(hn::Max(residual, zero), kFirstMassExponent), size_);
    acceptance_probability_.Store(
        scored, Truncate(hn::Ceil(hn::Mul(a, Constant(kAcceptanceBounds - 1)))), size_);
    size_ += kLanes;
    scored_ += hn::CountTrue(d, scored);
    const Floats negative = hn::Max(hn::Neg(log_envelope), zero);
    negative_log_envelope_.Add(
        ToFixed(hn::IfThenElseZero(scored, hn::Min(negative, Constant(64.0f)))));

    const Floats ratio = ExpAtMost88(LimitTo88(log_ratio));
    for (size_t bound = 0; bound < kRatioBounds.size(); ++bound) {
      const Floats limit = Constant(static_cast<float>(kRatioBounds[bound]));
      ratios_beyond_[bound] +=
          hn::CountTrue(d, kRatioBounds[bound] < 1 ? hn::Lt(ratio, limit) : hn::Gt(ratio, limit));
    }
    const float* const advantages = arrays.advantages == nullptr ? nullptr : arrays.advantages + i;
    const Floats abs_log = hn::Abs(log_ratio);
    plain_.Add(scored, ratio, ratio, abs_log, advantages);
    const Floats clipped = hn::Min(hn::Max(ratio, Constant(kClipLow)), Constant(kClipHigh));
    const Floats log_of_bound =
        hn::IfThenElse(hn::Lt(ratio, one), Constant(abs_log_low_), Constant(log_high_));
    clipped_.Add(scored, ratio, clipped,
                 hn::IfThenElse(hn::Eq(clipped, ratio), abs_log, log_of_bound), advantages);
    applied_.Add(scored, ratio, hn::IfThenElse(accepted, one, ratio),
                 hn::IfThenZeroElse(accepted, abs_log), advantages);
  }

  void AddTo(Statistics& statistics) {
    abs_log_ratio_.AddTo(size_, statistics.abs_log_ratio);
    log_envelope_.AddTo(size_, statistics.log_envelope);
    residual_mass_.AddTo(size_, statistics.residual_mass);
    acceptance_probability_.AddTo(size_, statistics.acceptance_probability);
    for (size_t bound = 0; bound < kRatioBounds.size(); ++bound) {
      statistics.ratios_beyond[bound] += static_cast<int64_t>(ratios_beyond_[bound]);
    }
    statistics.negative_log_envelope += negative_log_envelope_.Total();
    plain_.AddTo(scored_, statistics.plain);
    clipped_.AddTo(scored_, statistics.clipped);
    applied_.AddTo(scored_, statistics.applied);
  }

 private:
  const float abs_log_low_ = -LogOfWeight(kClipLow);
  const float log_high_ = LogOfWeight(kClipHigh);
  size_t size_ = 0;
  size_t scored_ = 0;
  VectorBuckets<kPowerBounds + 1> abs_log_ratio_;
  VectorBuckets<kPowerBounds + 1> log_envelope_;
  VectorBuckets<kPowerBounds + 1> residual_mass_;
  VectorBuckets<kAcceptanceBounds + 1> acceptance_probability_;
  size_t ratios_beyond_[kRatioBounds.size()] = {};
  SplitSum negative_log_envelope_;
  VectorCorrectionSums plain_;
  VectorCorrectionSums clipped_;
  VectorCorrectionSums applied_;
};

void AddBlock(const Arrays& arrays, size_t count, Statistics& statistics) {
  BlockStatistics block;
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) block.Add(arrays, i);
  if (i < count) {
    // Copies the last positions to arrays that are long enough.
    Decision decisions[kLanes];
    std::fill(decisions, decisions + kLanes, Decision::kMasked);
    float floats[5][kLanes] = {};
    const auto copy = [&](const auto* from, auto* to) {
      std::memcpy(to, from + i, (count - i) * sizeof(*to));
      return to;
    };
    block.Add({copy(arrays.decisions, decisions), copy(arrays.log_ratios, floats[0]),
               copy(arrays.log_envelopes, floats[1]), copy(arrays.covered_masses, floats[2]),
               copy(arrays.acceptance_probabilities, floats[3]),
               arrays.advantages == nullptr ? nullptr : copy(arrays.advantages, floats[4])},
              0);
  }
  block.AddTo(statistics);
}

void AddAll(const DecidedPositions& positions, Statistics& statistics) {
  const size_t end = positions.decisions.size();
  for (size_t first = 0; first < end; first += kBlock) {
    AddBlock({positions.decisions.data() + first, positions.log_ratios.data() + first,
              positions.log_envelopes.data() + first, positions.covered_masses.data() + first,
              positions.acceptance_probabilities.data() + first,
              positions.advantages.empty() ? nullptr : positions.advantages.data() + first},
             std::min(kBlock, end - first), statistics);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sis {

HWY_EXPORT(AddAll);

void AddStatistics(const DecidedPositions& positions, Statistics& statistics) {
  HWY_DYNAMIC_DISPATCH(AddAll)(positions, statistics);
}

}  // namespace sis
#endif
