#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/block/check.h"
#include "kernels/numerics/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/block/simd_check.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/block/distinct_ids-inl.h"
#include "kernels/block/ids-inl.h"
#include "kernels/block/simd_rows-inl.h"
#include "kernels/numerics/exp32.h"
#include "kernels/numerics/log_prob.h"
#include "kernels/numerics/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {
namespace {

// Maximum size of sets whose ids are compared in pairs.
constexpr size_t kComparedSlots = 64;

// Returns how often a value is followed by one that must not follow it within a position.
size_t WrongSteps(const uint16_t* codes, size_t count) {
  const hn::Repartition<uint16_t, FloatTag> d;
  const hn::RebindToSigned<decltype(d)> di;
  constexpr size_t kCodes = hn::MaxLanes(d);
  size_t total = 0, i = 1;
  while (i + kCodes <= count) {
    auto minus_wrong = hn::Zero(di);  // each lane at least -32767
    const size_t end = std::min(count, i + kCodes * 32767);
    for (; i + kCodes <= end; i += kCodes) {
      const auto code = hn::LoadU(d, codes + i);
      const auto falls = hn::Ne(hn::Max(code, hn::LoadU(d, codes + i - 1)), code);
      minus_wrong = hn::Add(minus_wrong, hn::VecFromMask(di, hn::RebindMask(di, falls)));
    }
    HWY_ALIGN int16_t lanes[kCodes];
    hn::Store(minus_wrong, di, lanes);
    for (const int16_t lane : lanes) total += static_cast<size_t>(-lane);
  }
  for (; i < count; ++i) total += codes[i] < codes[i - 1];
  return total;
}
size_t WrongSteps(const float* log_probs, size_t count) {
  const FloatTag d;
  size_t total = 0, i = 1;
  // NaN is in no order.
  for (; i + kLanes <= count; i += kLanes) {
    total +=
        kLanes - hn::CountTrue(d, hn::Le(LoadFloats(log_probs + i), LoadFloats(log_probs + i - 1)));
  }
  for (; i < count; ++i) total += !(log_probs[i] <= log_probs[i - 1]);
  return total;
}
// Returns true if WrongSteps counts the step between two positions, which is legal there.
bool IsWrongStep(uint16_t before, uint16_t code) { return code < before; }
bool IsWrongStep(float before, float log_prob) { return log_prob > before; }

// Returns how often an id is followed by a smaller one with equal log-prob.
HWY_INLINE size_t FallingTies(const float* log_probs, const int32_t* ids, size_t count) {
  const FloatTag d;
  const Int32Tag di;
  size_t total = 0;
  for (size_t i = 1; i < count; i += kLanes) {
    const Mask ties = hn::Eq(LoadFloats(log_probs + i), LoadFloats(log_probs + i - 1));
    const auto falls = hn::Lt(hn::LoadU(di, ids + i), hn::LoadU(di, ids + i - 1));
    total += hn::CountTrue(
        d, hn::And(hn::And(ties, hn::RebindMask(d, falls)), hn::FirstN(d, count - i)));
  }
  return total;
}

// Returns 1 to 1.0037 times 2^x for x in [-120, 10]: an upper bound, for sums that are compared
// with a limit.
HWY_INLINE Floats PowerOf2AtLeast(Floats x) {
  const Floats n = hn::Round(x);
  const Floats f = hn::Sub(x, n);
  const Floats p =
      hn::MulAdd(hn::MulAdd(Constant(0.2388f), f, Constant(0.7047f)), f, Constant(1.0023f));
  const Int32s exponent = hn::ShiftLeft<23>(hn::ConvertTo(Int32Tag(), n));
  return hn::BitCast(FloatTag(), hn::Add(hn::BitCast(Int32Tag(), p), exponent));
}

constexpr float kLog2E = 1.44269504f;

// Returns an upper bound of the mass of a position, in parts.
HWY_INLINE Floats MassParts(const uint16_t* codes, size_t count, float multiplier) {
  const FloatTag d;
  const hn::Rebind<uint16_t, FloatTag> d16;
  const Floats step = Constant(multiplier * (0x1p-18f * kLog2E));
  Floats sum = hn::Zero(d);
  for (size_t slot = 0; slot < count; slot += kLanes) {
    const Int32s code = hn::PromoteTo(Int32Tag(), hn::LoadU(d16, codes + slot));
    const Floats x = hn::NegMulAdd(hn::ConvertTo(d, code), step, Constant(0x1p-6f * kLog2E));
    sum = hn::Add(sum, hn::IfThenElseZero(hn::FirstN(d, count - slot), PowerOf2AtLeast(x)));
  }
  return sum;
}
HWY_INLINE Floats MassParts(const float* log_probs, size_t count, float) {
  const FloatTag d;
  Floats sum = hn::Zero(d);
  for (size_t slot = 0; slot < count; slot += kLanes) {
    // Log-probs below -80 add nothing; values above 1 and NaN are refused elsewhere.
    const Floats x =
        hn::Min(hn::Max(LoadFloats(log_probs + slot), Constant(-80.0f)), Constant(1.0f));
    const Floats e = PowerOf2AtLeast(hn::Mul(x, Constant(kLog2E)));
    sum = hn::Add(sum, hn::IfThenElseZero(hn::FirstN(d, count - slot), e));
  }
  return sum;
}

// Adds lanes whose distance is a multiple of four.
template <class D>
HWY_INLINE auto FoldToFour(D /*d*/, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return v;
  } else {
    const hn::Half<D> half;
    return FoldToFour(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

// Returns the sums of kLanes vectors.
HWY_INLINE Floats SumOfEach(const Floats (&vectors)[kLanes]) {
  const FloatTag d;
  const hn::CappedTag<float, 4> d4;
  HWY_ALIGN float sums[kLanes];
  for (size_t i = 0; i < kLanes; i += 4) {
    const auto parts = TransposeFours(d4, FoldToFour(d, vectors[i]), FoldToFour(d, vectors[i + 1]),
                                      FoldToFour(d, vectors[i + 2]), FoldToFour(d, vectors[i + 3]));
    hn::Store(hn::Add(hn::Add(parts.first.first, parts.first.second),
                      hn::Add(parts.second.first, parts.second.second)),
              d4, sums + i);
  }
  return hn::Load(d, sums);
}

// Numbers of kLanes positions, or fewer at the end.
struct Group {
  size_t count;
  uint32_t begins[kLanes] = {};  // of their slots, from the group's first
  size_t slots = 0;              // sum of the counts
  size_t longest = 0;
  HWY_ALIGN int32_t counts[kLanes] = {};
  HWY_ALIGN int32_t ranks[kLanes];
  HWY_ALIGN int32_t sampled_ids[2 * kLanes] = {};
  HWY_ALIGN float sampled_log_probs[kLanes] = {};
  HWY_ALIGN int32_t multipliers[kLanes];
  HWY_ALIGN int32_t last[kLanes] = {};        // the last slot's code, or bits
  HWY_ALIGN int32_t of_sampled[kLanes] = {};  // the sampled token's
  size_t steps = 0;                           // wrong ones, from the position before, of all
};

// Returns true if the ids of each set differ, and the sampled id has the stored rank.
HWY_INLINE bool SetsAreValid(const Group& group, const int32_t* ids) {
  const Int32Tag di;
  const Int32s counts = hn::Load(di, group.counts);
  const Int32s sampled = hn::Load(di, group.sampled_ids);
  Int32s ranks = hn::Set(di, kBlockRankOutside);
  HWY_ALIGN int32_t before[kComparedSlots * kLanes];
  auto repeated = hn::Lt(counts, counts);  // none
  for (size_t rank = 0; rank < group.longest; rank += kRanksAtOnce) {
    Int32s some[kRanksAtOnce];
    LoadRanks(ids, group.begins, rank, some);
    for (size_t i = 0; i < kRanksAtOnce; ++i) {
      const auto slot = static_cast<int32_t>(rank + i);
      // Gives unused slots unique values.
      some[i] = hn::IfThenElse(hn::Gt(counts, hn::Set(di, slot)), some[i], hn::Set(di, -1 - slot));
      ranks = hn::IfThenElse(hn::Eq(some[i], sampled), hn::Set(di, slot), ranks);
      for (size_t j = 0; j < i; ++j) repeated = hn::Or(repeated, hn::Eq(some[i], some[j]));
      hn::Store(some[i], di, before + (rank + i) * kLanes);
    }
    for (size_t earlier = 0; earlier < rank; ++earlier) {
      const Int32s id = hn::Load(di, before + earlier * kLanes);
      const auto two = hn::Or(hn::Eq(some[0], id), hn::Eq(some[1], id));
      repeated = hn::Or(repeated, hn::Or(two, hn::Or(hn::Eq(some[2], id), hn::Eq(some[3], id))));
    }
  }
  return hn::AllFalse(di, repeated) && hn::AllTrue(di, hn::Eq(ranks, hn::Load(di, group.ranks)));
}

// Like SetsAreValid, for sets of any size.
HWY_INLINE bool LongSetsAreValid(const Group& group, const int32_t* ids, DistinctIds& distinct) {
  const Int32Tag di;
  for (size_t i = 0; i < group.count; ++i) {
    const int32_t* const set = ids + group.begins[i];
    const auto count = static_cast<size_t>(group.counts[i]);
    if (!distinct.AllDiffer(set, count)) return false;
    const Int32s sampled = hn::Set(di, group.sampled_ids[i]);
    int32_t rank = kBlockRankOutside;
    for (size_t slot = 0; slot < count; slot += kLanes) {
      const auto found =
          hn::And(hn::Eq(hn::LoadU(di, set + slot), sampled), hn::FirstN(di, count - slot));
      const intptr_t lane = hn::FindFirstTrue(di, found);
      if (lane >= 0) rank = static_cast<int32_t>(slot) + static_cast<int32_t>(lane);
    }
    if (rank != group.ranks[i]) return false;
  }
  return true;
}

template <typename Code>
class Checker {
 public:
  explicit Checker(const BlockView& block)
      : block_(block),
        log_probs_(reinterpret_cast<const Code*>(block.log_probs)),
        end_(block.bytes.data() + block.bytes.size()) {}

  template <size_t kIdBytes>
  bool AllValid() {
    const Int32Tag di;
    const auto vocabulary_size = static_cast<int32_t>(block_.header.vocabulary_size);
    const auto all_are_ids = [&](const int32_t* ids, size_t count) HWY_ATTR {
      Int32s lowest = hn::Zero(di), highest = hn::Zero(di);
      for (size_t i = 0; i < count; i += kLanes) {
        const Int32s some = hn::IfThenElseZero(hn::FirstN(di, count - i), hn::LoadU(di, ids + i));
        highest = hn::Max(highest, some);
        if constexpr (kIdBytes == 4) lowest = hn::Min(lowest, some);
      }
      return hn::AllTrue(
          di, hn::And(hn::Gt(hn::Set(di, vocabulary_size), highest), hn::Eq(lowest, hn::Zero(di))));
    };
    size_t wrong_steps = 0, first_slot = 0;
    for (size_t index = 0; index < block_.header.positions; index += kLanes) {
      Group group;
      if (!Read(index, first_slot, group)) return false;
      UnpackIds<kIdBytes>(block_.sampled_ids + index * kIdBytes, end_, group.count,
                          group.sampled_ids);
      UnpackIds<kIdBytes>(block_.ids + first_slot * kIdBytes, end_, group.slots, ids_);
      if (!all_are_ids(group.sampled_ids, group.count) || !all_are_ids(ids_, group.slots)) {
        return false;
      }
      // Comparing pairs is faster for small sets, or if most lanes have sets of this size.
      const size_t longest = group.longest;
      const bool in_pairs =
          longest <= 24 || (longest <= kComparedSlots && longest * longest <= 8 * group.slots);
      if (!(in_pairs ? SetsAreValid(group, ids_) : LongSetsAreValid(group, ids_, distinct_))) {
        return false;
      }
      if (!MassesAreValid(group, first_slot) || !LogProbsAreValid(group)) return false;
      if constexpr (!kFixed) {
        if (FallingTies(log_probs_ + first_slot, ids_, group.slots) !=
            FallingBorders(group, first_slot)) {
          return false;
        }
      }
      wrong_steps += group.steps;
      first_slot += group.slots;
    }
    // If both numbers are equal, no step within a position is wrong, and all values after the first
    // one are not NaN. The first value is checked separately.
    return WrongSteps(log_probs_, first_slot) == wrong_steps &&
           (kFixed || first_slot == 0 || log_probs_[0] <= kRoundingSlack);
  }

 private:
  static constexpr bool kFixed = sizeof(Code) == sizeof(uint16_t);

  // Returns false if a rank is not that of a slot.
  HWY_INLINE bool Read(size_t index, size_t first_slot, Group& group) const {
    group.count = std::min<size_t>(kLanes, block_.header.positions - index);
    for (size_t i = 0; i < kLanes; ++i) {
      group.begins[i] = static_cast<uint32_t>(group.slots);
      group.ranks[i] = kBlockRankOutside;
      group.multipliers[i] = 1;
      if (HWY_UNLIKELY(i >= group.count)) continue;
      const size_t count = block_.counts[index + i], rank = block_.ranks[index + i];
      const Code* const slots = log_probs_ + first_slot + group.slots;
      group.counts[i] = static_cast<int32_t>(count);
      group.ranks[i] = static_cast<int32_t>(rank);
      group.sampled_log_probs[i] = block_.sampled_log_probs[index + i];
      if constexpr (kFixed) group.multipliers[i] = block_.multipliers[index + i];
      if (rank != kBlockRankOutside) {
        if (rank >= count) return false;
        group.of_sampled[i] = Bits(slots[rank]);
      }
      if (count > 0) {
        group.last[i] = Bits(slots[count - 1]);
        group.steps += first_slot + group.slots > 0 && IsWrongStep(slots[-1], slots[0]);
      }
      group.longest = std::max(group.longest, count);
      group.slots += count;
    }
    return true;
  }

  // Returns how many steps between positions of the group FallingTies counts. They are legal there.
  HWY_INLINE size_t FallingBorders(const Group& group, size_t first_slot) const {
    size_t total = 0;
    for (size_t i = 1; i < group.count; ++i) {
      const size_t slot = group.begins[i];
      if (slot == 0 || group.counts[i] == 0) continue;
      const Code* const at = log_probs_ + first_slot + slot;
      total += at[0] == at[-1] && ids_[slot] < ids_[slot - 1];
    }
    return total;
  }

  static HWY_INLINE int32_t Bits(Code code) {
    int32_t bits = 0;
    std::memcpy(&bits, &code, sizeof code);  // little-endian
    return bits;
  }

  HWY_INLINE bool MassesAreValid(const Group& group, size_t first_slot) const {
    Floats parts[kLanes];
    HWY_UNROLL(kLanes)
    for (size_t i = 0; i < kLanes; ++i) {
      parts[i] =
          MassParts(log_probs_ + first_slot + group.begins[i], static_cast<size_t>(group.counts[i]),
                    static_cast<float>(group.multipliers[i]));
    }
    // The margin allows for the error of adding up to 254 floats in another order.
    constexpr float kSurely = 1.0f + kRoundingSlack - 0x1p-12f;
    const auto surely = hn::Le(SumOfEach(parts), Constant(kSurely));
    if (HWY_LIKELY(hn::AllTrue(FloatTag(), surely))) return true;
    for (size_t i = 0; i < group.count; ++i) {
      const Code* const slots = log_probs_ + first_slot + group.begins[i];
      float mass = 0.0f;
      for (int32_t slot = 0; slot < group.counts[i]; ++slot) {
        float log_prob;
        if constexpr (kFixed) {
          log_prob = Fixed16(slots[slot], static_cast<uint32_t>(group.multipliers[i]));
        } else {
          log_prob = slots[slot];
          if (!(log_prob <= kRoundingSlack)) return false;
        }
        mass = mass + Exp32(log_prob);
      }
      if (!(mass <= 1.0f + kRoundingSlack)) return false;
    }
    return true;
  }

  // The first log-prob of a position is at most 1/64 because its mass is.
  HWY_INLINE bool LogProbsAreValid(const Group& group) const {
    const FloatTag d;
    const Int32Tag di;
    const Floats sampled = hn::Load(d, group.sampled_log_probs);
    const Int32s last = hn::Load(di, group.last);
    const Int32s of_sampled = hn::Load(di, group.of_sampled);
    const Mask outside =
        hn::RebindMask(d, hn::Eq(hn::Load(di, group.ranks), hn::Set(di, kBlockRankOutside)));
    Mask valid = hn::And(hn::Le(sampled, Constant(kRoundingSlack)),
                         hn::Ne(sampled, Constant(kMinusInfinity)));
    if constexpr (kFixed) {
      const Floats one = Constant(1.0f);
      const Floats multiplier = hn::ConvertTo(d, hn::Load(di, group.multipliers));
      valid = hn::And(valid, hn::Ge(multiplier, one));
      // The code as WriteCodes makes it; below the floor of fixed16 no slot can hold it.
      const Floats depth =
          hn::Sub(Constant(4096.0f), hn::Floor(hn::Mul(sampled, Constant(0x1p18f))));
      const Floats code = hn::Ceil(hn::Div(depth, multiplier));
      const Mask rounded = hn::Eq(code, hn::ConvertTo(d, of_sampled));
      valid = hn::And(valid, hn::Or(outside, rounded));
      const Floats last_code = hn::ConvertTo(d, last);
      const Floats lowest = Constant(static_cast<float>(kLowestCode16));
      valid = hn::And(valid, hn::Le(last_code, lowest));
      const Mask least =
          hn::Gt(hn::Mul(last_code, multiplier), hn::Mul(lowest, hn::Sub(multiplier, one)));
      valid = hn::And(valid, hn::Or(hn::Eq(multiplier, one), least));
    } else {
      const Mask same = hn::RebindMask(d, hn::Eq(hn::BitCast(di, sampled), of_sampled));
      valid = hn::And(valid, hn::Or(outside, same));
      valid = hn::And(valid, hn::Ne(hn::BitCast(d, last), Constant(kMinusInfinity)));
    }
    return hn::AllTrue(d, valid);
  }

  const BlockView& block_;
  const Code* const log_probs_;
  const std::byte* const end_;
  DistinctIds distinct_;
  // The ids of a group; vectors read up to a whole set beyond them.
  HWY_ALIGN int32_t ids_[(kLanes + 1) * kMaxBlockSlots + 2 * kLanes];
};

bool AreValid(const BlockView& block) {
  // Vectors read up to this far beyond the last log-prob.
  const size_t log_probs_end = BlockLayout(block.header).multipliers;
  if (log_probs_end + kLanes * sizeof(float) > block.bytes.size()) return false;
  return VisitIdBytes(block.header.id_bytes, [&]<size_t kIdBytes>() {
    return block.header.fixed() ? Checker<uint16_t>(block).template AllValid<kIdBytes>()
                                : Checker<float>(block).template AllValid<kIdBytes>();
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sis {
namespace {

HWY_EXPORT(AreValid);

}  // namespace

bool PositionsAreQuicklySeenValid(const BlockView& block) {
  return HWY_DYNAMIC_DISPATCH(AreValid)(block);
}

}  // namespace sis
#endif
