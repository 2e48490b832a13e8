// Recorded tokens found in the current policy's sets by a table, one position after the other: for
// sets of more than a few tokens.
#if defined(SIS_KERNELS_SIMD_HASHED_SETS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SIS_KERNELS_SIMD_HASHED_SETS_INL_H_
#undef SIS_KERNELS_SIMD_HASHED_SETS_INL_H_
#else
#define SIS_KERNELS_SIMD_HASHED_SETS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "hwy/highway.h"
#include "kernels/decide/top_k_sets/top_k_sets.h"
#include "kernels/numerics/simd_math-inl.h"
#include "kernels/records/simd_groups-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {

// Whether a set is valid, but for tokens that stand twice. False as well where its mass is so near
// to the limit that the order of adding could decide: 512 sums move it by less than 2^-15 of
// itself. There are more than kLanes slots.
HWY_INLINE bool IsSurelyValid(const int32_t* ids, const float* log_probs, size_t slots,
                              int32_t vocabulary_size) {
  const FloatTag d;
  const Int32Tag di;
  if (ids[0] == -1 || !(log_probs[0] <= kRoundingSlack)) return false;
  const Floats lowest = Constant(-87.0f);
  Floats sum = hn::Zero(d);
  Mask valid = hn::Eq(sum, sum);
  Int32s least = hn::Zero(di);
  Int32s greatest = hn::Zero(di);
  // Checks a vector of slots against those before or after it.
  const auto take = [&](size_t slot, Floats before, Floats after) HWY_ATTR {
    const Floats log_prob = hn::LoadU(d, log_probs + slot);
    const Int32s id = hn::LoadU(di, ids + slot);
    const Mask used = hn::Ne(log_prob, Constant(kMinusInfinity));
    const Mask has_id = hn::RebindMask(d, hn::Ne(id, hn::Set(di, -1)));
    valid = hn::AndNot(hn::Xor(used, has_id), valid);
    valid = hn::And(valid, hn::Le(after, before));  // not so for NaN
    least = hn::Min(least, id);
    greatest = hn::Max(greatest, id);
    return hn::Max(log_prob, lowest);
  };
  const auto load = [&](size_t slot) HWY_ATTR { return hn::LoadU(d, log_probs + slot); };
  const auto next = [&](size_t slot) HWY_ATTR { return take(slot, load(slot), load(slot + 1)); };
  size_t slot = 0;
  for (; slot + 4 * kLanes < slots; slot += 4 * kLanes) {
    const FourFloats e = ExpInRange(FourFloats{{next(slot), next(slot + kLanes)},
                                               {next(slot + 2 * kLanes), next(slot + 3 * kLanes)}});
    sum = hn::Add(sum, hn::Add(hn::Add(e.first.first, e.first.second),
                               hn::Add(e.second.first, e.second.second)));
  }
  for (; slot + kLanes < slots; slot += kLanes) sum = hn::Add(sum, ExpInRange(next(slot)));
  // The last one ends with the set, and leaves out what the one before it has.
  const size_t last = slots - kLanes;
  const Floats log_prob = take(last, load(last - 1), load(last));
  sum = hn::Add(sum, ExpInRange(hn::IfThenElse(hn::FirstN(d, slot - last), lowest, log_prob)));
  constexpr float kSure = 1.0f + kRoundingSlack - 0x1p-10f;
  const auto in_vocabulary =
      hn::And(hn::Gt(least, hn::Set(di, -2)), hn::Lt(greatest, hn::Set(di, vocabulary_size)));
  return hn::AllTrue(d, valid) && hn::AllTrue(di, in_vocabulary) &&
         hn::GetLane(hn::SumOfLanes(d, sum)) <= kSure;
}

// Slot: what holds each slot of the current sets; the smaller, the more of a core's cache is left.
template <typename Slot>
class HashedSets {
 public:
  // Of more than kLanes tokens.
  HashedSets(const TopKSets& sets, int32_t vocabulary_size)
      : sets_(sets), slots_(sets.slots), vocabulary_size_(vocabulary_size) {}

  // The current log-probs [k, 16] of the recorded ids of a group's first k ranks; NaN where they
  // aren't in the set. Lanes of no position may hold anything. False if a set isn't valid.
  HWY_INLINE bool Find(const GroupPart& part, std::span<const RowValues> ids, float* log_probs) {
    if (part.count < kGroup) std::fill_n(log_probs, ids.size() * kGroup, 0.0f);
    for (size_t rank = 0; rank < ids.size(); ++rank) {
      for (size_t lane = 0; lane < kGroup; lane += kLanes) {
        Hash(ids[rank].data() + lane, candidates_[rank].data() + lane);
      }
    }
    displaced_rows_ = 0;
    for (size_t i = 0; i < part.count; ++i) {
      const size_t lane = part.first_lane + i;
      const int32_t* set_ids = sets_.ids.data() + (part.index + i) * slots_;
      const float* set_log_probs = sets_.log_probs.data() + (part.index + i) * slots_;
      if (!IsSurelyValid(set_ids, set_log_probs, slots_, vocabulary_size_)) return false;
      if (!Enter(set_ids, set_log_probs, lane)) return false;
      HWY_UNROLL(4)
      for (size_t rank = 0; rank < ids.size(); ++rank) {
        uint32_t& candidate = candidates_[rank][lane];
        const size_t slot = slot_of_[candidate];
        candidate = static_cast<uint32_t>(set_ids[slot]);
        log_probs[rank * kGroup + lane] = set_log_probs[slot];
      }
    }
    for (size_t rank = 0; rank < ids.size(); ++rank) {
      for (size_t lane = 0; lane < kGroup; lane += kLanes) {
        DropOthers(ids[rank].data() + lane, candidates_[rank].data() + lane, lane,
                   log_probs + rank * kGroup + lane);
      }
    }
    return true;
  }

 private:
  // Large enough that of a hundred tokens' sets only every fourth has two with one hash; small
  // enough for a core's cache.
  static constexpr int kHashBits = 14;

  static HWY_INLINE void Hash(const uint32_t* ids, uint32_t* hashes) {
    const Uint32Tag du;
    const Uint32s product = hn::Mul(hn::LoadU(du, ids), hn::Set(du, 0x9E3779B1u));
    hn::StoreU(hn::ShiftRight<32 - kHashBits>(product), du, hashes);
  }

  // Notes where the tokens of a set stand. False if one stands twice.
  HWY_INLINE bool Enter(const int32_t* ids, const float* log_probs, size_t lane) {
    HWY_ALIGN uint32_t hashes[kMaxTopK];
    const auto* bits = reinterpret_cast<const uint32_t*>(ids);
    for (size_t slot = 0; slot + kLanes < slots_; slot += kLanes) Hash(bits + slot, hashes + slot);
    Hash(bits + slots_ - kLanes, hashes + slots_ - kLanes);
    HWY_UNROLL(4)
    for (size_t slot = 0; slot < slots_; ++slot) {
      slot_of_[hashes[slot]] = static_cast<Slot>(slot);
    }
    uint32_t differences = 0;
    HWY_UNROLL(4)
    for (size_t slot = 0; slot < slots_; ++slot) {
      differences |= slot_of_[hashes[slot]] ^ static_cast<uint32_t>(slot);
    }
    return differences == 0 || KeepDisplaced(ids, log_probs, hashes, lane);
  }

  // Keeps the tokens whose entry was overwritten by another of the set. If a token stands twice, at
  // least one of the two was.
  HWY_NOINLINE bool KeepDisplaced(const int32_t* ids, const float* log_probs,
                                  const uint32_t* hashes, size_t lane) {
    size_t count = 0;
    for (size_t slot = 0; slot < slots_; ++slot) {
      const size_t holder = slot_of_[hashes[slot]];
      if (holder == slot || ids[slot] == -1) continue;
      if (ids[holder] == ids[slot]) return false;
      const auto id = static_cast<uint32_t>(ids[slot]);
      for (size_t row = 0; row < count; ++row) {
        if (displaced_ids_[row][lane] == id) return false;
      }
      if (count == displaced_rows_) displaced_ids_[displaced_rows_++].fill(kNoId);
      displaced_ids_[count][lane] = id;
      displaced_log_probs_[count][lane] = log_probs[slot];
      ++count;
    }
    return true;
  }

  // Of kLanes candidates those that have another id than was looked for.
  HWY_INLINE void DropOthers(const uint32_t* ids, const uint32_t* candidates, size_t lane,
                             float* log_probs) const {
    const FloatTag d;
    const Uint32Tag du;
    const Uint32s wanted = hn::LoadU(du, ids);
    const auto is = [&](const uint32_t* others) HWY_ATTR {
      return hn::RebindMask(d, hn::Eq(wanted, hn::LoadU(du, others)));
    };
    Floats found = hn::IfThenElse(is(candidates), hn::LoadU(d, log_probs), hn::NaN(d));
    for (size_t row = 0; row < displaced_rows_; ++row) {
      found = hn::IfThenElse(is(displaced_ids_[row].data() + lane),
                             hn::LoadU(d, displaced_log_probs_[row] + lane), found);
    }
    hn::StoreU(found, d, log_probs);
  }

  static constexpr uint32_t kNoId = 0xFFFFFFFE;  // neither a token nor unused

  const TopKSets sets_;
  const size_t slots_;
  const int32_t vocabulary_size_;
  // By hash. Entries of earlier sets stay, as what is found is compared with the set at hand.
  Slot slot_of_[1 << kHashBits] = {};
  // First the hashes of the recorded ids, then the ids that the sets have in their places.
  RowValues candidates_[kMaxTopK];
  // A row for the first one of each lane, the second, and so on.
  size_t displaced_rows_ = 0;
  RowValues displaced_ids_[kMaxTopK];
  float displaced_log_probs_[kMaxTopK][kGroup];
};

}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#endif  // include guard of the target
