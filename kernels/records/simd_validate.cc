#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/numerics/simd_targets.h"
#include "kernels/records/validate.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/records/simd_validate.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/records/distinct_ids.h"
#if HWY_TARGET != HWY_SCALAR
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

// The caller checks one by one.
bool RecordsAreValid(const RecordView&, size_t, int32_t, uint16_t*, float, uint16_t*) {
  return false;
}

#else

// Fewer are checked sooner one by one than as a group of 16.
constexpr size_t kFewPositions = 4;

// Ids of larger sets are not compared in pairs.
constexpr size_t kComparedSlots = 24;

// `mass` and `counts`: of sets to be cut.
template <SetKind kKind>
bool SetsAreValid(const RecordView& records, size_t slots, int32_t vocabulary_size, uint16_t* ranks,
                  float mass, uint16_t* counts) {
  const size_t positions = records.sampled_ids.size();
  TokenMajorPositions ids(records.ids, slots);
  TokenMajorPositions log_probs(records.log_probs, slots);
  [[maybe_unused]] DistinctIds distinct;
  for (size_t index = 0; index < positions; index += kGroup) {
    // The last lanes of an incomplete group hold its first position again.
    const size_t count = std::min(kGroup, positions - index);
    HWY_ALIGN int32_t sampled_ids[kGroup];
    HWY_ALIGN float sampled_log_probs[kGroup];
    for (size_t lane = 0; lane < kGroup; ++lane) {
      const size_t position = index + (lane < count ? lane : 0);
      sampled_ids[lane] = records.sampled_ids[position];
      sampled_log_probs[lane] = records.sampled_log_probs[position];
    }
    const auto id_rows = ids.Group(0, index, 0, count);
    const auto log_prob_rows = log_probs.Group(0, index, 0, count);
    HWY_ALIGN int32_t group_ranks[kGroup];
    HWY_ALIGN int32_t group_counts[kGroup];
    for (size_t lane = 0; lane < kGroup; lane += kLanes) {
      SetChecker<kKind> checker(hn::Load(Int32Tag(), sampled_ids + lane),
                                hn::Load(FloatTag(), sampled_log_probs + lane), mass);
      CheckSlots(id_rows, log_prob_rows, lane, slots, checker);
      if (!checker.AllValid(vocabulary_size)) return false;
      hn::Store(checker.ranks(), Int32Tag(), group_ranks + lane);
      hn::Store(checker.counts(), Int32Tag(), group_counts + lane);
    }
    for (size_t lane = 0; lane < count; ++lane) {
      ranks[index + lane] = static_cast<uint16_t>(group_ranks[lane]);
      size_t kept = slots;
      if constexpr (IsCut(kKind)) {
        kept = static_cast<size_t>(group_counts[lane]);
        counts[index + lane] = static_cast<uint16_t>(kept);
      }
      if constexpr (HasDistinctIds(kKind)) {
        if (!distinct.AllDiffer(records.ids.subspan((index + lane) * slots, kept))) return false;
      }
    }
  }
  return true;
}

bool RecordsAreValid(const RecordView& records, size_t slots, int32_t vocabulary_size,
                     uint16_t* ranks, float mass, uint16_t* counts) {
  if (records.sampled_ids.size() < kFewPositions) return false;
  const auto are_valid = [&]<SetKind kKind>() {
    return SetsAreValid<kKind>(records, slots, vocabulary_size, ranks, mass, counts);
  };
  if (counts == nullptr) {
    return slots <= kComparedSlots ? are_valid.template operator()<SetKind::kRecord>()
                                   : are_valid.template operator()<SetKind::kDistinctRecord>();
  }
  return slots <= kComparedSlots ? are_valid.template operator()<SetKind::kCutRecord>()
                                 : are_valid.template operator()<SetKind::kDistinctCutRecord>();
}

#endif  // HWY_TARGET

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sis {
namespace {

HWY_EXPORT(RecordsAreValid);

// covered < mass if and only if it is below this, for every float.
float RoundedUp(double mass) {
  const auto nearest = static_cast<float>(mass);
  return nearest < mass ? std::nextafter(nearest, 2.0f) : nearest;
}

}  // namespace

bool RecordsAreQuicklySeenValid(const RecordView& records, int slots, int32_t vocabulary_size,
                                std::span<uint16_t> ranks, const MassCut& cut) {
  return HWY_DYNAMIC_DISPATCH(RecordsAreValid)(records, static_cast<size_t>(slots), vocabulary_size,
                                               ranks.data(), RoundedUp(cut.mass),
                                               cut.counts.empty() ? nullptr : cut.counts.data());
}

}  // namespace sis
#endif
