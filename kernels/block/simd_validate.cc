#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "kernels/block/validate.h"
#include "kernels/numerics/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/block/simd_validate.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/block/block.h"
#include "kernels/block/simd_rows-inl.h"
#include "kernels/numerics/exp32.h"
#include "kernels/numerics/log_prob.h"
#include "kernels/numerics/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {
namespace {

// Checks one row after the other. A row's first `end` slots count, whatever the values of others.
class RowChecker {
 public:
  RowChecker(const RecordView& records, size_t slots, uint8_t* counts, uint8_t* ranks)
      : sampled_ids_(records.sampled_ids.data()),
        sampled_log_probs_(records.sampled_log_probs.data()),
        ids_(records.ids, slots),
        log_probs_(records.log_probs, slots),
        counts_(counts),
        ranks_(ranks) {}

  HWY_INLINE void Add(size_t index, size_t end) {
    const FloatTag d;
    const Int32Tag di;
    const float* const log_probs = log_probs_.From(index, end);
    const int32_t* const ids = ids_.From(index, end);
    const float sampled_log_prob = sampled_log_probs_[index];
    const Int32s sampled_id = hn::Set(di, sampled_ids_[index]);
    const Floats sampled = Constant(sampled_log_prob);
    // False for NaN.
    valid_ = valid_ && sampled_log_prob <= kRoundingSlack && sampled_log_prob != kMinusInfinity &&
             sampled_ids_[index] >= 0 && log_probs[0] <= kRoundingSlack;
    size_t count = 0;
    uint8_t rank = kBlockRankOutside;
    for (size_t slot = 0; slot < end; slot += kLanes) {
      const Mask in = hn::FirstN(d, end - slot);
      const Mask has_next = hn::FirstN(d, end - slot - 1);
      const Floats log_prob = LoadFloats(log_probs + slot), next = LoadFloats(log_probs + slot + 1);
      const Int32s id = hn::LoadU(di, ids + slot), next_id = hn::LoadU(di, ids + slot + 1);
      const Mask used = hn::And(in, hn::Ne(log_prob, Constant(kMinusInfinity)));
      const Mask has_id = hn::And(in, AsMask(hn::Ne(id, hn::Set(di, -1))));
      // True for NaN, and for used slots after an unused one.
      const Mask rises = hn::AndNot(hn::Le(next, log_prob), has_next);
      const Mask ties = hn::And(hn::And(used, has_next), hn::Eq(next, log_prob));
      const Mask falling_ties = hn::AndNot(AsMask(hn::Gt(next_id, id)), ties);
      const Mask is_sampled = hn::And(in, AsMask(hn::Eq(id, sampled_id)));
      const Mask other_bits = AsMask(hn::Ne(hn::BitCast(di, log_prob), hn::BitCast(di, sampled)));
      wrong_ = hn::Or(hn::Or(wrong_, hn::Xor(used, has_id)),
                      hn::Or(hn::Or(rises, falling_ties), hn::And(is_sampled, other_bits)));
      const Int32s valid_id = hn::IfThenElseZero(hn::RebindMask(di, has_id), id);
      lowest_id_ = hn::Min(lowest_id_, valid_id);
      highest_id_ = hn::Max(highest_id_, valid_id);
      count += hn::CountTrue(d, used);
      const intptr_t lane = hn::FindFirstTrue(d, is_sampled);
      if (lane >= 0) rank = static_cast<uint8_t>(slot + static_cast<size_t>(lane));
    }
    highest_id_ = hn::Max(highest_id_, sampled_id);
    counts_[index] = static_cast<uint8_t>(count);
    ranks_[index] = rank;
  }

  HWY_INLINE bool AllValid(int32_t vocabulary_size) const {
    const Int32Tag di;
    return valid_ && hn::AllFalse(FloatTag(), wrong_) &&
           hn::AllTrue(di, hn::And(hn::Eq(lowest_id_, hn::Zero(di)),
                                   hn::Lt(highest_id_, hn::Set(di, vocabulary_size))));
  }

 private:
  static HWY_INLINE Mask AsMask(hn::Mask<Int32Tag> mask) {
    return hn::RebindMask(FloatTag(), mask);
  }

  const int32_t* const sampled_ids_;
  const float* const sampled_log_probs_;
  Rows<int32_t> ids_;
  Rows<float> log_probs_;
  uint8_t* const counts_;
  uint8_t* const ranks_;
  bool valid_ = true;
  Mask wrong_ = hn::FirstN(FloatTag(), 0);
  Int32s lowest_id_ = hn::Zero(Int32Tag());
  Int32s highest_id_ = hn::Zero(Int32Tag());
};

// Returns the number of leading slots that reach `mass`, or `slots`. The first `slot` have the mass
// `covered`.
size_t EndOf(const float* log_probs, size_t slot, size_t slots, float mass, float covered) {
  for (; slot < slots && covered < mass; ++slot) {
    // A set ends with its first invalid log-prob, which RowChecker finds then.
    covered = covered + (log_probs[slot] <= kRoundingSlack ? Exp32(log_probs[slot]) : mass);
  }
  return slot;
}

// Most sets reach their mass within as many slots.
constexpr size_t kHead = 8;

// Writes for kLanes rows how many slots reach `mass`. Looks at the first `head` slots of all rows
// at once: at most `slots`, and a multiple of kRanksAtOnce.
HWY_INLINE void FindEnds(const float* log_probs, size_t slots, size_t head, float mass,
                         size_t (&ends)[kLanes]) {
  const Int32Tag di;
  uint32_t begins[kLanes];
  for (size_t lane = 0; lane < kLanes; ++lane) begins[lane] = static_cast<uint32_t>(lane * slots);
  Floats sums = hn::Zero(FloatTag());
  Int32s minus_ends = hn::Zero(di);
  const auto is_open = [&] { return hn::Lt(sums, Constant(mass)); };
  for (size_t rank = 0; rank < head; rank += kRanksAtOnce) {
    Floats some[kRanksAtOnce], exponentials[kRanksAtOnce];
    LoadRanks(log_probs, begins, rank, some);
    ExpOfEach(some, exponentials);
    for (const Floats exponential : exponentials) {
      minus_ends = hn::Add(minus_ends, hn::VecFromMask(di, hn::RebindMask(di, is_open())));
      sums = hn::Add(sums, exponential);
    }
  }
  HWY_ALIGN float covered[kLanes];
  HWY_ALIGN int32_t minus[kLanes];
  hn::Store(sums, FloatTag(), covered);
  hn::Store(minus_ends, di, minus);
  for (size_t lane = 0; lane < kLanes; ++lane) {
    size_t end = static_cast<size_t>(-minus[lane]);
    if (end == head) end = EndOf(log_probs + lane * slots, head, slots, mass, covered[lane]);
    ends[lane] = end;
  }
}

// Where sets are cut, most of a long row is not read, so the processor foresees no reads. Rows are
// prefetched one by one, because it cannot keep many reads waiting.
constexpr size_t kRowsAhead = 2 * kLanes;

bool RecordsAreValid(const RecordView& records, size_t slots, int32_t vocabulary_size, float mass,
                     uint8_t* counts, uint8_t* ranks) {
  const size_t positions = records.sampled_ids.size();
  const bool is_cut = !std::isinf(mass);
  const size_t head = std::min(kHead, slots / kRanksAtOnce * kRanksAtOnce);
  RowChecker checker(records, slots, counts, ranks);
  for (size_t begin = 0; begin < positions; begin += kLanes) {
    const size_t count = std::min(kLanes, positions - begin);
    size_t ends[kLanes];
    std::fill_n(ends, kLanes, slots);
    if (is_cut) {
      const float* const log_probs = records.log_probs.data() + begin * slots;
      if (count == kLanes) {
        FindEnds(log_probs, slots, head, mass, ends);
      } else {
        for (size_t i = 0; i < count; ++i) {
          ends[i] = EndOf(log_probs + i * slots, 0, slots, mass, 0);
        }
      }
    }
    for (size_t i = begin; i < begin + count; ++i) {
      const size_t next = i + kRowsAhead;
      if (is_cut && slots > kLanes && next < positions) {
        for (const size_t slot : {next * slots, next * slots + kLanes}) {
          hwy::Prefetch(records.ids.data() + slot);
          hwy::Prefetch(records.log_probs.data() + slot);
        }
      }
      checker.Add(i, ends[i - begin]);
    }
  }
  return checker.AllValid(vocabulary_size);
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
