// A group of 16 positions at a time. First every recorded token is looked for in the current set of
// its position; then, a position a lane, what was found becomes envelopes and covered masses.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "kernels/decide/top_k_sets/top_k_sets.h"
#include "kernels/numerics/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/decide/top_k_sets/simd_top_k_sets.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/numerics/log_prob.h"
#include "kernels/records/simd_read_groups.h"
#if HWY_TARGET != HWY_SCALAR
#include "kernels/decide/top_k_sets/simd_hashed_sets-inl.h"
#include "kernels/numerics/simd_math-inl.h"
#include "kernels/records/simd_groups-inl.h"
#include "kernels/records/simd_rows-inl.h"
#include "kernels/records/simd_set_checker-inl.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR

// The caller does it one by one.
bool Reduce(const RecordedSets&, const TopKSets&, int32_t, const ReducedSets&) { return false; }

#else

// Sets of so many tokens are compared with all recorded ones, larger ones are hashed. The work of
// comparing goes with K K' / kLanes, that of hashing with K + K'; they are equal at K = K' = 24
// with 16 lanes, at 18 with 8.
constexpr int kMostCompared = 8 + kLanes;

// Recorded tokens found in the current sets by comparing all with all, a position a lane.
class ComparedSets {
 public:
  ComparedSets(const TopKSets& sets, int32_t vocabulary_size)
      : slots_(sets.slots),
        vocabulary_size_(vocabulary_size),
        ids_(sets.ids, slots_),
        log_probs_(sets.log_probs, slots_) {}

  // As HashedSets::Find.
  HWY_INLINE bool Find(const GroupPart& part, std::span<const RowValues> ids, float* log_probs) {
    const auto id_rows = ids_.Group(0, part.index, part.first_lane, part.count);
    const auto log_prob_rows = log_probs_.Group(0, part.index, part.first_lane, part.count);
    for (size_t lane = 0; lane < kGroup; lane += kLanes) {
      SetChecker<SetKind::kCurrent> checker;
      CheckSlots(id_rows, log_prob_rows, lane, slots_, checker);
      if (!checker.AllValid(vocabulary_size_)) return false;
      size_t rank = 0;
      for (; rank + kRanksAtOnce <= ids.size(); rank += kRanksAtOnce) {
        FindRanks<kRanksAtOnce>(checker, &ids[rank], lane, log_probs + rank * kGroup);
      }
      for (; rank < ids.size(); ++rank) {
        FindRanks<1>(checker, &ids[rank], lane, log_probs + rank * kGroup);
      }
    }
    return true;
  }

 private:
  // Of kCount ranks, side by side: no comparison waits for the last.
  template <size_t kCount>
  HWY_INLINE void FindRanks(const SetChecker<SetKind::kCurrent>& sets, const RowValues* ids,
                            size_t lane, float* log_probs) const {
    const FloatTag d;
    const Uint32Tag du;
    Int32s wanted[kCount];
    Floats found[kCount];
    for (size_t i = 0; i < kCount; ++i) {
      wanted[i] = hn::BitCast(Int32Tag(), hn::Load(du, ids[i].data() + lane));
      found[i] = hn::NaN(d);
    }
    for (size_t slot = 0; slot < slots_; ++slot) {
      const Int32s id = sets.Id(slot);
      const Floats log_prob = sets.LogProb(slot);
      for (size_t i = 0; i < kCount; ++i) {
        const Mask same = hn::RebindMask(d, hn::Eq(wanted[i], id));
        found[i] = hn::IfThenElse(same, log_prob, found[i]);
      }
    }
    for (size_t i = 0; i < kCount; ++i) {
      hn::Store(found[i], d, log_probs + i * kGroup + lane);
    }
  }

  const size_t slots_;
  const int32_t vocabulary_size_;
  TokenMajorPositions<int32_t> ids_;
  TokenMajorPositions<float> log_probs_;
};

// Reads the recorded ids of a group; those in lanes of no position may be anything.
class IdReader {
 public:
  explicit IdReader(const RecordedSets& recorded) : recorded_(recorded) {}

  // Of the first ranks, as many as there is room for.
  HWY_INLINE void Read(size_t group, const GroupPart& part, std::span<RowValues> ranks) const {
    const GroupedIds& grouped = recorded_.grouped_ids;
    if (grouped.empty()) return Transpose(part, ranks);
    const size_t sampled = group * grouped.GroupBytes(recorded_.slots);
    UnpackRowsOnVectors(grouped.rows.subspan(sampled + PackedRowBytes(grouped.bits)), grouped.bits,
                        ranks);
  }

 private:
  void Transpose(const GroupPart& part, std::span<RowValues> ranks) const {
    for (size_t lane = 0; lane < kGroup; ++lane) {
      const bool filled = lane >= part.first_lane && lane < part.first_lane + part.count;
      const size_t position = part.index + (filled ? lane - part.first_lane : 0);
      const int32_t* ids = recorded_.ids.data() + position * recorded_.slots;
      for (size_t rank = 0; rank < ranks.size(); ++rank) {
        ranks[rank][lane] = static_cast<uint32_t>(ids[rank]);
      }
    }
  }

  const RecordedSets& recorded_;
};

// What the found log-probs of kLanes positions come down to, in the order of the ranks.
class FoundAccumulator {
 public:
  // The bound is of what was not found.
  explicit HWY_INLINE FoundAccumulator(Floats bound)
      : bound_(bound),
        max_log_ratio_(Constant(kMinusInfinity)),
        covered_mass_(hn::Zero(FloatTag())) {}

  HWY_INLINE void Add(Floats behavior, Floats current) {
    const Mask used = hn::Ne(behavior, Constant(kMinusInfinity));
    const Mask found = hn::And(used, hn::Eq(current, current));  // not NaN
    const Floats log_ratio = hn::Sub(hn::IfThenElse(found, current, bound_), behavior);
    max_log_ratio_ =
        hn::Max(max_log_ratio_, hn::IfThenElse(used, log_ratio, Constant(kMinusInfinity)));
    covered_mass_ = hn::Add(covered_mass_, hn::IfThenElseZero(found, ExpAtMost88(current)));
  }

  HWY_INLINE Floats log_envelope() const { return FlushAll(max_log_ratio_); }
  HWY_INLINE Floats covered_mass() const { return covered_mass_; }

 private:
  Floats bound_;
  Floats max_log_ratio_;
  Floats covered_mass_;
};

template <class BehaviorRows>
HWY_INLINE FoundAccumulator Accumulate(const BehaviorRows& behavior, const float* found,
                                       size_t lane, size_t top_k, Floats bound) {
  FoundAccumulator accumulator(bound);
  VisitRanks(
      top_k, [&]<size_t kCount>(size_t rank) HWY_ATTR __attribute__((always_inline)) {
        Floats values[kCount];
        ReadRanks(behavior, lane, rank, values);
        for (size_t i = 0; i < kCount; ++i) {
          accumulator.Add(values[i], hn::Load(FloatTag(), found + (rank + i) * kGroup + lane));
        }
      });
  return accumulator;
}

template <class BehaviorGroups, class CurrentSets>
bool ReduceGroups(const RecordedSets& recorded, const TopKSets& current, BehaviorGroups& behavior,
                  CurrentSets& sets, const ReducedSets& into) {
  const FloatTag d;
  const size_t positions = into.log_envelopes.size();
  const size_t top_k = recorded.top_k;
  HWY_ALIGN RowValues id_rows[kMaxTopK];
  const auto ids = std::span(id_rows).first(top_k);
  const IdReader reader(recorded);
  HWY_ALIGN float found[kMaxTopK * kGroup];
  GroupPart part{0, recorded.grouped_log_probs.first_lane, 0};
  for (size_t group = 0; part.index < positions; ++group) {
    part.count = std::min(kGroup - part.first_lane, positions - part.index);
    reader.Read(group, part, ids);
    if (!sets.Find(part, ids, found)) return false;
    HWY_ALIGN float bounds[kGroup] = {};
    for (size_t i = 0; i < part.count; ++i) {
      bounds[part.first_lane + i] = current.log_probs[(part.index + i + 1) * current.slots - 1];
    }
    const auto rows = behavior.Group(group, part.index, part.first_lane, part.count);
    HWY_ALIGN float log_envelopes[kGroup];
    HWY_ALIGN float covered_masses[kGroup];
    for (size_t lane = 0; lane < kGroup; lane += kLanes) {
      const auto accumulator = Accumulate(rows, found, lane, top_k, hn::Load(d, bounds + lane));
      hn::Store(accumulator.log_envelope(), d, log_envelopes + lane);
      hn::Store(accumulator.covered_mass(), d, covered_masses + lane);
    }
    const size_t bytes = part.count * sizeof(float);
    std::memcpy(&into.log_envelopes[part.index], log_envelopes + part.first_lane, bytes);
    std::memcpy(&into.covered_masses[part.index], covered_masses + part.first_lane, bytes);
    part.index += part.count;
    part.first_lane = 0;
  }
  return true;
}

template <class BehaviorGroups>
bool ReduceWith(const RecordedSets& recorded, const TopKSets& current, int32_t vocabulary_size,
                BehaviorGroups behavior, const ReducedSets& into) {
  if (current.slots <= kMostCompared) {
    ComparedSets sets(current, vocabulary_size);
    return ReduceGroups(recorded, current, behavior, sets, into);
  }
  if (current.slots <= 256) {
    HashedSets<uint8_t> sets(current, vocabulary_size);
    return ReduceGroups(recorded, current, behavior, sets, into);
  }
  HashedSets<uint16_t> sets(current, vocabulary_size);
  return ReduceGroups(recorded, current, behavior, sets, into);
}

bool Reduce(const RecordedSets& recorded, const TopKSets& current, int32_t vocabulary_size,
            const ReducedSets& into) {
  const size_t slots = recorded.slots;
  const GroupedLogProbs& grouped = recorded.grouped_log_probs;
  if (grouped.empty()) {
    return ReduceWith(recorded, current, vocabulary_size,
                      TokenMajorPositions(recorded.log_probs, slots), into);
  }
  return VisitEncoding(grouped.encoding, [&]<LogProbEncoding kEncoding>() {
    return ReduceWith(recorded, current, vocabulary_size, GroupedRows<kEncoding>(grouped, slots),
                      into);
  });
}

#endif  // HWY_TARGET

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sis {
namespace {

HWY_EXPORT(Reduce);

}  // namespace

bool ReduceTopKSetsSimd(const RecordedSets& recorded, const TopKSets& current,
                        int32_t vocabulary_size, const ReducedSets& into) {
  return HWY_DYNAMIC_DISPATCH(Reduce)(recorded, current, vocabulary_size, into);
}

}  // namespace sis
#endif
