// The slots of ragged log-probs (kernels/records/ragged_log_probs.h) and the current policy's
// values beside them. Exponentials are taken where used slots stand side by side, without gaps;
// only what joins the slots of a position goes rank by rank. Where few positions of a vector have
// slots left, these are read position by position.
#if defined(SIS_KERNELS_SIMD_RAGGED_SLOTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SIS_KERNELS_SIMD_RAGGED_SLOTS_INL_H_
#undef SIS_KERNELS_SIMD_RAGGED_SLOTS_INL_H_
#else
#define SIS_KERNELS_SIMD_RAGGED_SLOTS_INL_H_
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "hwy/highway.h"
#include "kernels/decide/simd_slots-inl.h"
#include "kernels/numerics/simd_math-inl.h"
#include "kernels/records/ragged_log_probs.h"
#include "kernels/records/simd_groups-inl.h"
#include "kernels/records/simd_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {

#if HWY_TARGET > HWY_AVX3
// For each mask of up to eight lanes, by its bits: how many of its lanes come before each lane.
using LanesBefore = std::array<std::array<uint8_t, 8>, 256>;
constexpr LanesBefore MakeLanesBefore() {
  LanesBefore before{};
  for (size_t bits = 0; bits < before.size(); ++bits) {
    uint8_t count = 0;
    for (size_t lane = 0; lane < 8; ++lane) {
      before[bits][lane] = count;
      count = static_cast<uint8_t>(count + (bits >> lane & 1));
    }
  }
  return before;
}
inline constexpr LanesBefore kLanesBefore = MakeLanesBefore();
static_assert(kLanes <= 8);
#endif

// The first values, one to each lane of the mask; other lanes get anything finite. `bits` are those
// of the mask.
HWY_INLINE Floats Expand(Floats values, Mask mask, uint32_t bits) {
#if HWY_TARGET <= HWY_AVX3
  static_cast<void>(bits);
  return {_mm512_maskz_expand_ps(mask.raw, values.raw)};
#else
  const FloatTag d;
  const Int32s before = hn::PromoteTo(
      Int32Tag(), hn::LoadU(hn::Rebind<uint8_t, FloatTag>(), kLanesBefore[bits].data()));
  const Floats lanes = hn::TableLookupLanes(values, hn::IndicesFromVec(d, before));
  return hn::IfThenElseZero(mask, lanes);
#endif
}

// Memory for one group. Vectors are read and written to beyond the end of what is in use.
struct RaggedScratch {
  static constexpr size_t kRows = kMaxTopK + kRanksAtOnce;

  HWY_ALIGN float codes[kGroup * (kMaxTopK + 2)];
  HWY_ALIGN float steps[kGroup];  // by lane
  uint16_t lanes[kRows];          // by rank, a bit for each position that has that slot
  uint16_t begins[kRows];         // by rank, its first slot in `codes`
};

// A group's behaviour log-probs, rank by rank.
class RaggedGroup {
 public:
  using Values = Floats;

  // The group in scratch; of its positions the values of codes are top - code * step.
  HWY_INLINE RaggedGroup(const uint16_t* counts, size_t longest, const std::byte* multipliers,
                         RaggedScratch& scratch)
      : counts_(counts), longest_(longest), scratch_(scratch) {
    const Int32Tag di;
    for (size_t lane = 0; lane < kGroup; lane += kLanes) {
      const size_t i = lane / kLanes;
      lane_counts_[i] =
          hn::PromoteTo(di, hn::LoadU(hn::Rebind<uint16_t, FloatTag>(), counts + lane));
      if (multipliers == nullptr) {
        tops_ = hn::Zero(FloatTag());
        steps_[i] = Constant(-1.0f);
      } else {
        const auto* row = reinterpret_cast<const uint8_t*>(multipliers);
        tops_ = Constant(0x1p-6f);
        steps_[i] =
            hn::Mul(hn::Sub(Unpack12Bits(row, lane), Constant(0x1p23f)), Constant(0x1p-18f));
      }
      hn::Store(steps_[i], FloatTag(), scratch.steps + lane);
    }
  }

  // Slots of the longest set: there are no more ranks.
  size_t longest() const { return longest_; }
  // The same of the kLanes positions from `lane` on.
  HWY_INLINE size_t Longest(size_t lane) const {
    const Int32Tag di;
    return static_cast<size_t>(hn::GetLane(hn::MaxOfLanes(di, lane_counts_[lane / kLanes])));
  }

  // Which of the kLanes positions from `lane` on have a slot of that rank; and the bits of these.
  HWY_INLINE Mask Has(size_t lane, size_t rank) const {
    const Int32Tag di;
    return hn::RebindMask(
        FloatTag(), hn::Gt(lane_counts_[lane / kLanes], hn::Set(di, static_cast<int32_t>(rank))));
  }
  HWY_INLINE uint32_t Bits(size_t lane, size_t rank) const {
    return uint32_t{scratch_.lanes[rank]} >> lane & ((1u << kLanes) - 1);
  }

  // Of the positions that have the slot; others get anything finite.
  HWY_INLINE Floats At(size_t lane, size_t rank, Mask has) const {
    const float* codes = CodesFrom(lane, rank);
    return MinusExactProduct(tops_, Expand(LoadFloats(codes), has, Bits(lane, rank)),
                             steps_[lane / kLanes]);
  }
  // Of one position, which has the slot.
  HWY_INLINE float ValueAt(size_t lane, size_t rank) const {
    return hn::GetLane(tops_) - *CodesFrom(lane, rank) * scratch_.steps[lane];
  }
  HWY_INLINE size_t Count(size_t lane) const { return counts_[lane]; }

  // As other layouts are read: -inf in unused slots.
  template <SlotUse kUse = SlotUse::kAny>
  HWY_INLINE FourFloats Load(size_t lane, size_t rank) const {
    return {{OrUnused(lane, rank), OrUnused(lane, rank + 1)},
            {OrUnused(lane, rank + 2), OrUnused(lane, rank + 3)}};
  }
  template <SlotUse kUse = SlotUse::kAny, size_t kCount>
  HWY_INLINE void LoadLast(size_t lane, size_t rank, Floats (&last)[kCount]) const {
    for (size_t i = 0; i < kCount; ++i) last[i] = OrUnused(lane, rank + i);
  }

 private:
  // The codes of that rank, from the first position on that is in `lane` or behind it.
  HWY_INLINE const float* CodesFrom(size_t lane, size_t rank) const {
    const uint32_t before = scratch_.lanes[rank] & ((1u << lane) - 1);
    return scratch_.codes + scratch_.begins[rank] + std::popcount(before);
  }
  HWY_INLINE Floats OrUnused(size_t lane, size_t rank) const {
    const Mask has = Has(lane, rank);
    return hn::IfThenElse(has, At(lane, rank, has), Constant(kMinusInfinity));
  }

  const uint16_t* counts_;
  size_t longest_;
  RaggedScratch& scratch_;
  Int32s lane_counts_[kGroup / kLanes];
  Floats steps_[kGroup / kLanes];
  Floats tops_;
};

// Group after group.
class RaggedPositions {
 public:
  explicit RaggedPositions(const RaggedLogProbs& log_probs) : log_probs_(log_probs) {}

  HWY_INLINE RaggedGroup Group(size_t group, size_t /*index*/, size_t /*first_lane*/,
                               size_t /*count*/) {
    const uint16_t* counts = log_probs_.counts.data() + group * kGroup;
    const size_t longest = *std::max_element(counts, counts + kGroup);
    // The first one's code begins a byte if it is even.
    const size_t begin = log_probs_.begins[group];
    FindRows(counts, longest, begin % 2);
    VisitEncoding(log_probs_.encoding, [&]<LogProbEncoding kEncoding>() HWY_ATTR {
      UnpackCodes<kEncoding>(begin - begin % 2, log_probs_.begins[group + 1]);
    });
    const std::byte* multipliers = nullptr;
    if (log_probs_.encoding == LogProbEncoding::kFixed12) {
      constexpr size_t kBytes = RowBytes(LogProbEncoding::kFixed12);
      multipliers = Row(log_probs_.multipliers, group * kBytes, kBytes);
    }
    return RaggedGroup(counts, longest, multipliers, scratch_);
  }

 private:
  // Where the slots of each rank are, up to those that are read with the last four.
  HWY_INLINE void FindRows(const uint16_t* counts, size_t longest, size_t begin) {
    const hn::FixedTag<uint8_t, kGroup> d8;
    constexpr size_t kRanksOfBytes = 255;
    const size_t end = longest + kRanksAtOnce - 1;
    for (size_t first = 0; first < end; first += kRanksOfBytes) {
      const auto group = CountsAbove(counts, first);
      const size_t last = std::min(end, first + kRanksOfBytes);
      for (size_t rank = first; rank < last; ++rank) {
        uint8_t bits[8];
        hn::StoreMaskBits(d8, hn::Gt(group, hn::Set(d8, static_cast<uint8_t>(rank - first))), bits);
        uint16_t lanes;
        std::memcpy(&lanes, bits, sizeof(lanes));
        scratch_.lanes[rank] = lanes;
        scratch_.begins[rank] = static_cast<uint16_t>(begin);
        begin += std::popcount(lanes);
      }
    }
  }

  // By how much each count of a group is above `first`, in [0, 255]: limited to that.
  static HWY_INLINE hn::Vec<hn::FixedTag<uint8_t, kGroup>> CountsAbove(const uint16_t* counts,
                                                                       size_t first) {
    const hn::FixedTag<int16_t, kGroup / 2> d16;
    const hn::FixedTag<uint8_t, kGroup / 2> dh;
    const auto half = [&](const uint16_t* from) HWY_ATTR {
      const auto above =
          hn::Sub(hn::BitCast(d16, hn::LoadU(hn::RebindToUnsigned<decltype(d16)>(), from)),
                  hn::Set(d16, static_cast<int16_t>(first)));
      return hn::DemoteTo(dh, above);
    };
    return hn::Combine(hn::FixedTag<uint8_t, kGroup>(), half(counts + kGroup / 2), half(counts));
  }

  // The codes [first, end), as numbers.
  template <LogProbEncoding kEncoding>
  HWY_INLINE void UnpackCodes(size_t first, size_t end) {
    constexpr size_t kBytes = RowBytes(kEncoding);
    float* to = scratch_.codes;
    for (size_t byte = first * kBytes / kGroup; first < end; first += kGroup, byte += kBytes) {
      const std::byte* row = Row(log_probs_.codes, byte, kBytes);
      for (size_t lane = 0; lane < kGroup; lane += kLanes, to += kLanes) {
        if constexpr (kEncoding == LogProbEncoding::kFixed12) {
          const auto* packed = reinterpret_cast<const uint8_t*>(row);
          hn::Store(hn::Sub(Unpack12Bits(packed, lane), Constant(0x1p23f)), FloatTag(), to);
        } else {
          hn::Store(RowReader<kEncoding>(row).Read(row, lane), FloatTag(), to);
        }
      }
    }
  }

  // Aligned to its values, and zeros where nothing is.
  HWY_INLINE const std::byte* Row(std::span<const std::byte> section, size_t byte, size_t bytes) {
    // Those of twelve bits are read as bytes.
    if (bytes == RowBytes(LogProbEncoding::kFixed12) && byte + bytes <= section.size()) {
      return section.data() + byte;
    }
    const size_t there = byte < section.size() ? std::min(bytes, section.size() - byte) : 0;
    if (there > 0) std::memcpy(row_, section.data() + byte, there);
    std::memset(row_ + there, 0, bytes - there);
    return row_;
  }

  const RaggedLogProbs& log_probs_;
  HWY_ALIGN std::byte row_[RowBytes(LogProbEncoding::kFloat32)];
  RaggedScratch scratch_;
};

// Values of a group's positions that stand one position after the other.
class RaggedRows {
 public:
  using Values = Floats;

  // `begins`: by lane, where its position's values begin. Values can be read up to the end of the
  // longest set, four at a time, from everywhere.
  HWY_INLINE RaggedRows(const float* values, const uint32_t* begins)
      : values_(values), begins_(begins) {}

  // Ranks rank to rank + 3 of the kLanes positions from `lane` on; where there is no slot,
  // anything.
  HWY_INLINE FourFloats Load(size_t lane, size_t rank) const {
    const FloatTag d;
    return TransposeFours(d, FourOf(d, lane, rank), FourOf(d, lane + 1, rank),
                          FourOf(d, lane + 2, rank), FourOf(d, lane + 3, rank));
  }
  template <size_t kCount>
  HWY_INLINE void LoadLast(size_t lane, size_t rank, Floats (&last)[kCount]) const {
    const FourFloats four = Load(lane, rank);
    const Floats in_order[] = {four.first.first, four.first.second, four.second.first,
                               four.second.second};
    for (size_t i = 0; i < kCount; ++i) last[i] = in_order[i];
  }
  // The values of one position.
  HWY_INLINE const float* Position(size_t lane) const { return values_ + begins_[lane]; }

 private:
  // Four values of one position, and of those 4, 8 and 12 lanes on, if there are as many.
  template <class D>
  HWY_INLINE hn::Vec<D> FourOf(D d, size_t lane, size_t rank) const {
    if constexpr (hn::MaxLanes(D()) == 4) {
      return hn::LoadU(d, values_ + begins_[lane] + rank);
    } else {
      const hn::Half<D> half;
      return hn::Combine(d, FourOf(half, lane + hn::MaxLanes(D()) / 2, rank),
                         FourOf(half, lane, rank));
    }
  }

  const float* values_;
  const uint32_t* begins_;
};

// The current policy's values of a group, and their exponentials.
struct RaggedCurrentRows {
  RaggedRows log_probs;
  RaggedRows exponentials;
  // Whether all exponentials are right, if the masses are valid.
  bool in_range;
};

// The current policy's values beside ragged records, ragged as these or in rows of all slots. Each
// value is read once, and those that no record has a slot for mostly not.
class RaggedCurrent {
 public:
  // `all_counts`: of the current values, empty if they are in rows.
  RaggedCurrent(std::span<const float> values, std::span<const uint16_t> all_counts, size_t slots,
                const RaggedLogProbs& records)
      : values_(values), in_rows_(all_counts.empty()), slots_(slots), records_(records) {}

  // Groups come one after the other.
  HWY_INLINE RaggedCurrentRows Group(size_t group, size_t index, size_t first_lane, size_t count) {
    const uint16_t* counts = records_.counts.data() + group * kGroup;
    uint32_t end = 0;
    for (size_t lane = 0; lane < kGroup; ++lane) {
      // Lanes of other positions read anything.
      const bool filled = count == kGroup || (lane >= first_lane && lane < first_lane + count);
      begins_[lane] = filled ? end : 0;
      end += filled ? counts[lane] : 0;
    }
    if (in_rows_) {
      for (size_t i = 0; i < count; ++i) {
        const size_t lane = first_lane + i;
        Copy((index + i) * slots_, counts[lane], log_probs_ + begins_[lane]);
      }
    } else {
      Copy(next_, end, log_probs_);
      next_ += end;
    }
    const FloatTag d;
    hn::StoreU(hn::Zero(d), d, log_probs_ + end);
    Uint32s largest_bits = hn::Zero(Uint32Tag());
    const auto exponentials = [&]<size_t kCount>(size_t vector) HWY_ATTR
        __attribute__((always_inline)) {
      Floats p[kCount], e[kCount];
      for (size_t i = 0; i < kCount; ++i) {
        p[i] = hn::Load(d, log_probs_ + (vector + i) * kLanes);
        largest_bits = hn::Max(largest_bits, RangeBits(p[i]));
      }
      ExpOfEach(p, e);
      for (size_t i = 0; i < kCount; ++i) {
        hn::Store(e[i], d, exponentials_ + (vector + i) * kLanes);
      }
    };
    VisitRanks((end + kLanes - 1) / kLanes, exponentials);
    return {RaggedRows(log_probs_, begins_), RaggedRows(exponentials_, begins_),
            AllInRange(largest_bits)};
  }

 private:
  // Beyond its last value a position is read up to the longest set's, four ranks at a time.
  static constexpr size_t kRoom = kGroup * kMaxTopK + kMaxTopK + kRanksAtOnce + kLanes;

  // May write up to kLanes - 1 values more.
  HWY_INLINE void Copy(size_t from, size_t count, float* to) {
    const FloatTag d;
    for (size_t i = 0; i < count; i += kLanes) {
      const float* values = values_.data() + from + i;
      if (HWY_LIKELY(from + i + kLanes <= values_.size())) {
        hn::StoreU(LoadFloats(values), d, to + i);
      } else {
        float last[kLanes] = {};
        std::memcpy(last, values, (count - i) * sizeof(float));
        hn::StoreU(LoadFloats(last), d, to + i);
      }
    }
  }

  const std::span<const float> values_;
  const bool in_rows_;
  const size_t slots_;
  const RaggedLogProbs& records_;
  size_t next_ = 0;  // the first value of the next group
  uint32_t begins_[kGroup];
  HWY_ALIGN float log_probs_[kRoom];
  HWY_ALIGN float exponentials_[kRoom];
};

// With so few positions left, reading each by itself takes less than a vector, which takes the same
// time however few they are.
inline constexpr int kFewPositions = kLanes > 4 ? 3 : 1;

// What the slots of kLanes positions come to, as EnvelopeAccumulator has it.
class RaggedAccumulators {
 public:
  RaggedAccumulators(const RaggedGroup& behavior, const RaggedCurrentRows& current, size_t lane)
      : behavior_(behavior),
        current_(current),
        lane_(lane),
        max_(Constant(kMinusInfinity)),
        covered_mass_(hn::Zero(FloatTag())) {}

  HWY_INLINE Envelopes Finish() const { return {FlushAll(max_), covered_mass_}; }

  // Ranks rank to rank + 3 of all positions. Where there is no slot, 0 is added.
  HWY_INLINE void AddFour(size_t rank, PrefixPoints& points) {
    const FourFloats p = current_.log_probs.Load(lane_, rank);
    const FourFloats e = current_.exponentials.Load(lane_, rank);
    Add(p.first.first, e.first.first, rank, points);
    Add(p.first.second, e.first.second, rank + 1, points);
    Add(p.second.first, e.second.first, rank + 2, points);
    Add(p.second.second, e.second.second, rank + 3, points);
  }

  // All ranks from `rank` on, position by position.
  HWY_INLINE void AddRest(size_t rank) {
    const FloatTag d;
    HWY_ALIGN float maxima[kLanes];
    HWY_ALIGN float masses[kLanes];
    hn::Store(max_, d, maxima);
    hn::Store(covered_mass_, d, masses);
    for (uint32_t left = behavior_.Bits(lane_, rank); left != 0; left &= left - 1) {
      const auto i = static_cast<size_t>(std::countr_zero(left));
      const float* p = current_.log_probs.Position(lane_ + i);
      const float* e = current_.exponentials.Position(lane_ + i);
      const size_t end = behavior_.Count(lane_ + i);
      float max = maxima[i], covered_mass = masses[i];
      for (size_t slot = rank; slot < end; ++slot) {
        const float log_ratio = p[slot] - behavior_.ValueAt(lane_ + i, slot);
        max = log_ratio > max ? log_ratio : max;
        covered_mass = covered_mass + e[slot];
      }
      maxima[i] = max;
      masses[i] = covered_mass;
    }
    max_ = hn::Load(d, maxima);
    covered_mass_ = hn::Load(d, masses);
  }

 private:
  HWY_INLINE void Add(Floats p, Floats exponential, size_t rank, PrefixPoints& points) {
    const Mask has = behavior_.Has(lane_, rank);
    const Floats log_ratio = hn::Sub(p, behavior_.At(lane_, rank, has));
    max_ = hn::Max(max_, hn::IfThenElse(has, log_ratio, Constant(kMinusInfinity)));
    covered_mass_ = hn::Add(covered_mass_, hn::IfThenElseZero(has, exponential));
    if (HWY_UNLIKELY(rank + 1 == points.next())) points.Keep(Finish());
  }

  const RaggedGroup& behavior_;
  const RaggedCurrentRows& current_;
  const size_t lane_;
  Floats max_;
  Floats covered_mass_;
};

// The fast way, as AccumulatePlain.
HWY_INLINE bool AccumulateRagged(const RaggedGroup& behavior, const RaggedCurrentRows& current,
                                 size_t lane, const SlotPlan& plan, SlotResults& results) {
  RaggedAccumulators accumulators(behavior, current, lane);
  PrefixPoints points(plan, results);
  const size_t longest = behavior.Longest(lane);
  for (size_t rank = 0; rank < longest; rank += kRanksAtOnce) {
    // The points of the curve take all positions at a time.
    if (points.empty() && std::popcount(behavior.Bits(lane, rank)) <= kFewPositions) {
      accumulators.AddRest(rank);
      break;
    }
    accumulators.AddFour(rank, points);
  }
  const Envelopes all = accumulators.Finish();
  points.KeepRest(all);
  if (HWY_LIKELY(plan.top_k == plan.slots)) results.envelopes = all;
  results.valid = AreMasses(all.covered_mass);
  return current.in_range;
}

// Fills in what `plan` asks for.
HWY_INLINE void AccumulateSlots(const RaggedGroup& behavior, const RaggedCurrentRows& current,
                                size_t lane, const SlotPlan& plan, Expectation& /*expectation*/,
                                SlotResults& results) {
  if (HWY_LIKELY(!plan.total_variation) &&
      HWY_LIKELY(AccumulateRagged(behavior, current, lane, plan, results))) {
    return;
  }
  const CopiedSlots slots(behavior, current.log_probs, lane, behavior.longest());
  plan.total_variation ? AccumulateAny<true>(slots, plan, results)
                       : AccumulateAny<false>(slots, plan, results);
}

}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#endif  // include guard of the target
