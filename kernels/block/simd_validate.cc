#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>

#include "kernels/block/validate.h"
#include "kernels/numerics/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/block/simd_validate.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/block/block.h"
#include "kernels/block/distinct_ids-inl.h"
#include "kernels/block/simd_rows-inl.h"
#include "kernels/numerics/log_prob.h"
#include "kernels/numerics/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {
namespace {

// Kinds of sets: with ids that are compared in pairs, or that DistinctIds checks instead; either
// may be cut at a mass. Slots after a cut count as unused, whatever their values.
enum class SetKind { kRecord, kDistinctRecord, kCutRecord, kDistinctCutRecord };

constexpr bool HasDistinctIds(SetKind kind) {
  return kind == SetKind::kDistinctRecord || kind == SetKind::kDistinctCutRecord;
}
constexpr bool IsCut(SetKind kind) {
  return kind == SetKind::kCutRecord || kind == SetKind::kDistinctCutRecord;
}

// Returns the maximum size of sets whose ids are compared in pairs.
constexpr size_t ComparedSlots(bool is_cut) { return is_cut ? 24 : 64; }

template <SetKind kKind>
class SetChecker {
 public:
  // `mass` is the mass at which counts() ends.
  HWY_INLINE SetChecker(Int32s sampled_ids, Floats sampled_log_probs, float mass)
      : sampled_ids_(sampled_ids),
        sampled_log_probs_(sampled_log_probs),
        mass_target_(Constant(mass)),
        minus_counts_(hn::Zero(Int32Tag())),
        ranks_(hn::Set(Int32Tag(), kBlockRankOutside)),
        lowest_id_(sampled_ids),
        highest_id_(sampled_ids),
        last_id_(hn::Set(Int32Tag(), -1)),
        last_log_prob_(Constant(kRoundingSlack)),
        mass_(hn::Zero(FloatTag())),
        valid_(hn::And(hn::Le(sampled_log_probs, Constant(kRoundingSlack)),
                       hn::Ne(sampled_log_probs, Constant(kMinusInfinity)))) {
    valid_ = hn::And(valid_, AsMask(hn::Gt(sampled_ids, hn::Set(Int32Tag(), -1))));
  }

  // Adds the ids and log-probs of `rank` and the ranks after it. Makes slots after a cut unused.
  template <size_t kCount>
  HWY_INLINE void Add(Int32s (&ids)[kCount], Floats (&log_probs)[kCount], size_t rank) {
    Floats exponentials[kCount];
    ExpOfEach(log_probs, exponentials);
    for (size_t i = 0; i < kCount; ++i) {
      if constexpr (IsCut(kKind)) Cut(ids[i], log_probs[i]);
      mass_ = hn::Add(mass_, ZeroBelowRange(log_probs[i], exponentials[i]));
    }
    if constexpr (!HasDistinctIds(kKind)) CheckDistinct(ids, log_probs, rank);
    for (size_t i = 0; i < kCount; ++i) {
      AddSlot(ids[i], log_probs[i], static_cast<int32_t>(rank + i));
    }
  }

  HWY_INLINE bool AllValid(int32_t vocabulary_size) const {
    const Int32Tag di;
    const Mask in_vocabulary = AsMask(hn::And(hn::Gt(lowest_id_, hn::Set(di, -2)),
                                              hn::Lt(highest_id_, hn::Set(di, vocabulary_size))));
    const Mask mass = hn::Le(mass_, Constant(1.0f + kRoundingSlack));
    return hn::AllTrue(FloatTag(), hn::And(hn::And(valid_, in_vocabulary), mass));
  }
  // Returns the slot of each sampled token.
  HWY_INLINE Int32s ranks() const { return ranks_; }
  // Returns the number of leading slots that reach the mass, or of all used slots.
  HWY_INLINE Int32s counts() const { return hn::Neg(minus_counts_); }
  // Returns true if further slots change nothing, for sets that are cut.
  HWY_INLINE bool AllCut() const { return hn::AllFalse(FloatTag(), IsOpen()); }

 private:
  static HWY_INLINE Mask AsMask(hn::Mask<Int32Tag> mask) {
    return hn::RebindMask(FloatTag(), mask);
  }

  // Returns the sets that have not reached their mass. A set whose mass is NaN is invalid anyway.
  HWY_INLINE Mask IsOpen() const { return hn::Lt(mass_, mass_target_); }
  HWY_INLINE void Cut(Int32s& ids, Floats& log_probs) {
    const Int32Tag di;
    const Mask is_open = IsOpen();
    ids = hn::IfThenElse(hn::RebindMask(di, is_open), ids, hn::Set(di, -1));
    log_probs = hn::IfThenElse(is_open, log_probs, Constant(kMinusInfinity));
  }

  // Compares the ids with each other and with all earlier ones. Unused slots all have the same id.
  template <size_t kCount>
  HWY_INLINE void CheckDistinct(const Int32s (&ids)[kCount], const Floats (&log_probs)[kCount],
                                size_t rank) {
    const Int32Tag di;
    hn::Mask<Int32Tag> repeated[kCount];
    for (size_t i = 0; i < kCount; ++i) {
      repeated[i] = hn::Lt(ids[i], ids[i]);  // none
      for (size_t j = 0; j < i; ++j) repeated[i] = hn::Or(repeated[i], hn::Eq(ids[i], ids[j]));
      hn::Store(ids[i], di, ids_ + (rank + i) * kLanes);
    }
    for (size_t before = 0; before < rank; ++before) {
      const Int32s id = hn::Load(di, ids_ + before * kLanes);
      for (size_t i = 0; i < kCount; ++i) repeated[i] = hn::Or(repeated[i], hn::Eq(ids[i], id));
    }
    for (size_t i = 0; i < kCount; ++i) {
      const Mask used = hn::Ne(log_probs[i], Constant(kMinusInfinity));
      valid_ = hn::AndNot(hn::And(used, AsMask(repeated[i])), valid_);
    }
  }

  HWY_INLINE void AddSlot(Int32s id, Floats log_prob, int32_t rank) {
    const Int32Tag di;
    const Mask used = hn::Ne(log_prob, Constant(kMinusInfinity));
    minus_counts_ = hn::Add(minus_counts_, hn::VecFromMask(di, hn::RebindMask(di, used)));
    const Mask has_id = AsMask(hn::Ne(id, hn::Set(di, -1)));
    valid_ = hn::AndNot(hn::Xor(used, has_id), valid_);
    // False for NaN, values above the slack, and used slots after an unused one.
    const Mask sorted = hn::Le(log_prob, last_log_prob_);
    valid_ = hn::And(valid_, sorted);
    const Mask tied = hn::And(used, hn::Eq(log_prob, last_log_prob_));
    const Mask ids_ascend = AsMask(hn::Gt(id, last_id_));
    valid_ = hn::AndNot(hn::AndNot(ids_ascend, tied), valid_);

    const hn::Mask<Int32Tag> sampled = hn::Eq(id, sampled_ids_);
    const auto differs = hn::Ne(hn::BitCast(di, log_prob), hn::BitCast(di, sampled_log_probs_));
    valid_ = hn::AndNot(AsMask(hn::And(sampled, differs)), valid_);
    ranks_ = hn::IfThenElse(sampled, hn::Set(di, rank), ranks_);

    lowest_id_ = hn::Min(lowest_id_, id);
    highest_id_ = hn::Max(highest_id_, id);
    last_id_ = id;
    last_log_prob_ = log_prob;
  }

  const Int32s sampled_ids_;
  const Floats sampled_log_probs_;
  const Floats mass_target_;
  Int32s minus_counts_;
  Int32s ranks_;
  Int32s lowest_id_;
  Int32s highest_id_;
  Int32s last_id_;
  Floats last_log_prob_;
  Floats mass_;
  Mask valid_;
  HWY_ALIGN int32_t ids_[HasDistinctIds(kKind) ? 1 : ComparedSlots(IsCut(kKind)) * kLanes];
};

// Reads rows of kLanes positions at a time.
template <typename T>
class Rows {
 public:
  Rows(std::span<const T> values, size_t slots) : values_(values), slots_(slots) {}

  // Returns the rows from position `index` on, copied if vectors would read beyond the array.
  HWY_INLINE const T* From(size_t index) {
    const std::span rest = values_.subspan(index * slots_);
    if (rest.size() > kLanes * slots_ + kLanes) return rest.data();
    // Repeats the last position in the remaining lanes.
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const size_t position = std::min(lane, rest.size() / slots_ - 1);
      std::memcpy(last_ + lane * slots_, rest.data() + position * slots_, slots_ * sizeof(T));
    }
    return last_;
  }

 private:
  const std::span<const T> values_;
  const size_t slots_;
  T last_[kLanes * kMaxBlockSlots + kLanes];
};

template <SetKind kKind>
bool SetsAreValid(const RecordView& records, size_t slots, int32_t vocabulary_size, float mass,
                  uint8_t* counts, uint8_t* ranks) {
  const size_t positions = records.sampled_ids.size();
  Rows ids(records.ids, slots);
  Rows log_probs(records.log_probs, slots);
  [[maybe_unused]] DistinctIds distinct;
  uint32_t begins[kLanes];
  for (size_t lane = 0; lane < kLanes; ++lane) begins[lane] = static_cast<uint32_t>(lane * slots);
  for (size_t index = 0; index < positions; index += kLanes) {
    const size_t count = std::min(kLanes, positions - index);
    HWY_ALIGN int32_t lanes[kLanes];
    HWY_ALIGN float sampled_log_probs[kLanes];
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const size_t position = index + std::min(lane, count - 1);
      lanes[lane] = records.sampled_ids[position];
      sampled_log_probs[lane] = records.sampled_log_probs[position];
    }
    const int32_t* const some_ids = ids.From(index);
    const float* const some_log_probs = log_probs.From(index);
    SetChecker<kKind> checker(hn::Load(Int32Tag(), lanes), hn::Load(FloatTag(), sampled_log_probs),
                              mass);
    const auto add = [&]<size_t kCount>(size_t rank) HWY_ATTR __attribute__((always_inline)) {
      Int32s ranked_ids[kCount];
      Floats ranked_log_probs[kCount];
      LoadRanks(some_ids, begins, rank, ranked_ids);
      LoadRanks(some_log_probs, begins, rank, ranked_log_probs);
      checker.Add(ranked_ids, ranked_log_probs, rank);
    };
    size_t rank = 0;
    for (; rank + kRanksAtOnce <= slots; rank += kRanksAtOnce) {
      if (IsCut(kKind) && checker.AllCut()) break;
      add.template operator()<kRanksAtOnce>(rank);
    }
    VisitLastRanks(rank, slots - rank, add);
    if (!checker.AllValid(vocabulary_size)) return false;
    hn::Store(checker.ranks(), Int32Tag(), lanes);
    for (size_t lane = 0; lane < count; ++lane) {
      ranks[index + lane] = static_cast<uint8_t>(lanes[lane]);
    }
    hn::Store(checker.counts(), Int32Tag(), lanes);
    for (size_t lane = 0; lane < count; ++lane) {
      const auto used = static_cast<size_t>(lanes[lane]);
      counts[index + lane] = static_cast<uint8_t>(used);
      if constexpr (HasDistinctIds(kKind)) {
        if (!distinct.AllDiffer(some_ids + lane * slots, used)) return false;
      }
    }
  }
  return true;
}

// Fewer positions are checked faster one by one.
constexpr size_t kFewPositions = 4;

bool RecordsAreValid(const RecordView& records, size_t slots, int32_t vocabulary_size, float mass,
                     uint8_t* counts, uint8_t* ranks) {
  if (records.sampled_ids.size() < kFewPositions) return false;
  const auto are_valid = [&]<SetKind kKind>() {
    return SetsAreValid<kKind>(records, slots, vocabulary_size, mass, counts, ranks);
  };
  const bool is_cut = !std::isinf(mass);
  if (slots > ComparedSlots(is_cut)) {
    return is_cut ? are_valid.template operator()<SetKind::kDistinctCutRecord>()
                  : are_valid.template operator()<SetKind::kDistinctRecord>();
  }
  return is_cut ? are_valid.template operator()<SetKind::kCutRecord>()
                : are_valid.template operator()<SetKind::kRecord>();
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sis {
namespace {

HWY_EXPORT(RecordsAreValid);

// Returns the smallest float that is at least `mass`.
float RoundedUp(double mass) {
  const auto nearest = static_cast<float>(mass);
  return nearest < mass ? std::nextafter(nearest, 2.0f) : nearest;
}

}  // namespace

bool RecordsAreQuicklySeenValid(const RecordView& records, int slots, int32_t vocabulary_size,
                                double mass, std::span<uint8_t> counts, std::span<uint8_t> ranks) {
  return HWY_DYNAMIC_DISPATCH(RecordsAreValid)(
      records, static_cast<size_t>(slots), vocabulary_size,
      mass > 0 && mass < 1 ? RoundedUp(mass) : std::numeric_limits<float>::infinity(),
      counts.data(), ranks.data());
}

}  // namespace sis
#endif
