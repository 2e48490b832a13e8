#include "kernels/decide/simd_backend.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>

#include "kernels/numerics/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/decide/simd_backend.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/decide/simd_decide-inl.h"
#include "kernels/decide/simd_envelopes-inl.h"
#include "kernels/numerics/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {
namespace {

// The slots of a range in the GATHERED form, group after group.
template <typename Code>
class GatheredSlots {
 public:
  explicit GatheredSlots(const BackendRange& range)
      : behavior_(range.behavior),
        codes_(reinterpret_cast<const Code*>(behavior_.log_probs)),
        current_(range.current.log_probs) {}

  // Opens the `count` positions from `index` on. Groups must be opened in order.
  HWY_INLINE void Open(size_t index, size_t count) {
    const uint8_t* counts = behavior_.counts.data() + index;
    if (HWY_UNLIKELY(count < kGroup)) {
      std::memcpy(last_counts_, counts, count);
      counts = last_counts_;
    }
    const size_t first = used_;
    for (size_t lane = 0; lane < kGroup; lane += kLanes) {
      LaneSlots<Code>& slots = slots_[lane / kLanes];
      slots.counts = counts + lane;
      if (sizeof(Code) == sizeof(uint16_t)) {
        slots.multipliers = behavior_.multipliers.data() + index + lane;
      }
      slots.behavior = codes_ + used_;
      slots.current = current_.data() + used_;
      slots.FindBegins();
      used_ += slots.size();
    }
    if (HWY_UNLIKELY(used_ + kSlotsBehind > current_.size())) {
      // Copies the last slots, so that vectors don't read beyond the caller's memory.
      std::copy(current_.begin() + first, current_.begin() + used_, last_current_);
      std::fill_n(last_current_ + (used_ - first), kSlotsBehind, 0.0f);
      for (LaneSlots<Code>& slots : slots_) {
        slots.current = last_current_ + (slots.behavior - slots_[0].behavior);
      }
    }
  }

  HWY_INLINE void Read(size_t lane, const GroupInput& /*input*/, const SlotPlan& plan,
                       SlotResults& results) {
    ReadSlots(slots_[lane / kLanes], plan, scratch_, results);
  }

 private:
  const BlockRange& behavior_;
  const Code* const codes_;
  const std::span<const float> current_;
  size_t used_ = 0;  // slots of the groups so far
  LaneSlots<Code> slots_[kGroup / kLanes];
  uint8_t last_counts_[kGroup] = {};
  float last_current_[kGroup * kMaxBlockSlots + kSlotsBehind];
  SlotScratch scratch_;
};

// The REDUCED form has its envelopes already.
struct ReducedSlots {
  HWY_INLINE void Open(size_t /*index*/, size_t /*count*/) {}
  HWY_INLINE void Read(size_t lane, const GroupInput& input, const SlotPlan& /*plan*/,
                       SlotResults& results) {
    const Floats log_envelope = LoadFloats(input.log_envelopes + lane);
    const Floats covered_mass = LoadFloats(input.covered_masses + lane);
    results.envelopes = {FlushAll(log_envelope), covered_mass};
    results.valid =
        hn::And(hn::Lt(log_envelope, Constant(std::numeric_limits<float>::infinity())),
                hn::And(hn::Ge(covered_mass, hn::Zero(FloatTag())), AreMasses(covered_mass)));
  }
};

// Keeps the sums of consecutive ranges in vectors while they have the same destination.
class SumCollector {
 public:
  ~SumCollector() { Flush(); }

  // `points` is the number of points of the prefix curve below top_k. The point at top_k has the
  // sums themselves.
  void Open(const BackendRange& range, size_t points) {
    if (range.sums != into_ || range.prefix_sums.data() != prefix_into_.data()) Flush();
    into_ = range.sums;
    prefix_into_ = range.prefix_sums;
    points_ = points;
  }
  // Ensures that `positions` more positions don't overflow. All of them must then be added.
  HWY_INLINE void MakeRoom(size_t positions) {
    if (sums_.scored + positions > SplitSum::kMaxPositions) Flush();
    sums_.scored += positions;
  }
  VectorSums& sums() { return sums_; }
  VectorPrefixSums* prefix_sums() { return prefix_sums_; }

 private:
  void Flush() {
    if (sums_.scored == 0) return;
    Sums sums;
    sums_.AddTo(sums);
    sums_ = VectorSums();
    *into_ += sums;
    for (size_t point = 0; point < points_; ++point) {
      prefix_sums_[point].AddTo(prefix_into_[point]);
      prefix_sums_[point] = VectorPrefixSums();
    }
    if (points_ < prefix_into_.size()) {
      prefix_into_.back() += {sums.residual_mass, sums.expected_acceptance};
    }
  }

  Sums* into_ = nullptr;
  std::span<PrefixSums> prefix_into_;
  size_t points_ = 0;
  VectorSums sums_;
  VectorPrefixSums prefix_sums_[kMaxPrefixPoints];
};

// Decides the first `count` positions of a group.
template <class Slots>
HWY_INLINE void DecideGroup(Slots& slots, const GroupInput& input, const GroupOutput& output,
                            size_t count, const SlotPlan& plan, SumCollector& collector) {
  for (size_t lane = 0; lane < kGroup; lane += kLanes) {
    const Mask scored = hn::FirstN(FloatTag(), lane < count ? HWY_MIN(count - lane, kLanes) : 0);
    SlotResults results;
    slots.Read(lane, input, plan, results);
    DecideLanes(input, output, lane, results.envelopes, results.valid, scored, plan.top_k,
                collector.sums());
    AddPrefix(results.prefix, plan.prefix_curve.size(), scored, collector.prefix_sums());
    if (plan.total_variation) {
      collector.sums().total_variation.Add(
          UnitToFixed(hn::IfThenElseZero(scored, results.total_variation)));
    }
  }
}

template <class Slots>
HWY_NOINLINE void DecideLastGroup(Slots& slots, const GroupInput& input, const GroupOutput& output,
                                  size_t count, const SlotPlan& plan, SumCollector& collector) {
  PartialGroup partial(input, count);
  DecideGroup(slots, partial.input(), partial.output(), count, plan, collector);
  partial.CopyOutputTo(output);
}

template <class Slots>
void EvaluatePositions(const SlotPlan& plan, uint64_t draw, const BackendRange& range,
                       Slots&& slots, SumCollector& collector) {
  const auto at = [](const auto& values, size_t index) {
    return values.empty() ? nullptr : values.data() + index;
  };
  UniformStream uniforms(range.sequence_key, draw, range.first_position);
  const size_t positions = range.behavior.size();
  for (size_t index = 0; index < positions; index += kGroup) {
    const size_t count = std::min(kGroup, positions - index);
    const GroupInput input = {range.behavior.sampled_log_probs.data() + index,
                              range.current.sampled_log_probs.data() + index,
                              range.behavior.ranks.data() + index,
                              uniforms.At(index),
                              at(range.current.log_envelopes, index),
                              at(range.current.covered_masses, index)};
    const GroupOutput output = {range.output.decisions.data() + index,
                                at(range.output.acceptance_probabilities, index),
                                at(range.output.log_modified_ratios, index),
                                at(range.output.modified_ratios, index),
                                at(range.output.log_ratios, index),
                                at(range.output.log_envelopes, index),
                                at(range.output.covered_masses, index)};
    collector.MakeRoom(count);
    slots.Open(index, count);
    if (HWY_LIKELY(count == kGroup)) {
      DecideGroup(slots, input, output, kGroup, plan, collector);
    } else {
      DecideLastGroup(slots, input, output, count, plan, collector);
    }
  }
}

// Prefetches the beginning of an array.
template <typename T>
HWY_INLINE void PrefetchFirst(const T* values, size_t count) {
  for (size_t byte = 0; byte < std::min<size_t>(count * sizeof(T), 256); byte += 64) {
    PrefetchAhead(reinterpret_cast<const std::byte*>(values) + byte, 0);
  }
}

// Evaluates a range. `next` is the next range, to prefetch; may be null.
void EvaluateRange(const EvaluateParameters& parameters, const BackendRange& range,
                   const BackendRange* next, SumCollector& collector) {
  SlotPlan plan = {static_cast<size_t>(std::min(parameters.top_k, kMaxBlockSlots)),
                   parameters.total_variation,
                   {}};
  if (!range.prefix_sums.empty()) {
    plan.prefix_curve = parameters.prefix_curve;
    // The sums over all slots are computed anyway.
    if (plan.prefix_curve.back() == parameters.top_k) {
      plan.prefix_curve = plan.prefix_curve.first(plan.prefix_curve.size() - 1);
    }
  }
  collector.Open(range, plan.prefix_curve.size());
  if (next != nullptr) {
    const BlockRange& behavior = next->behavior;
    PrefetchFirst(behavior.sampled_log_probs.data(), behavior.size());
    PrefetchFirst(behavior.ranks.data(), behavior.size());
    PrefetchFirst(behavior.multipliers.data(), behavior.multipliers.size());
    PrefetchFirst(behavior.counts.data(), behavior.size());
    PrefetchFirst(behavior.log_probs, behavior.used_slots);
  }
  if (range.current.reduced()) {
    EvaluatePositions(plan, parameters.draw, range, ReducedSlots(), collector);
  } else if (range.behavior.encoding == BlockEncoding::kFixed16) {
    EvaluatePositions(plan, parameters.draw, range, GatheredSlots<uint16_t>(range), collector);
  } else {
    EvaluatePositions(plan, parameters.draw, range, GatheredSlots<float>(range), collector);
  }
}

void Evaluate(const EvaluateParameters& parameters, std::span<const BackendRange> ranges) {
  SumCollector collector;
  for (size_t i = 0; i < ranges.size(); ++i) {
    EvaluateRange(parameters, ranges[i], i + 1 < ranges.size() ? &ranges[i + 1] : nullptr,
                  collector);
  }
}

const char* TargetName() { return hwy::TargetName(HWY_TARGET); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sis {
namespace {

HWY_EXPORT(Evaluate);
HWY_EXPORT(TargetName);

}  // namespace

SimdBackend::SimdBackend() {
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  name_ = std::string("cpu/") + HWY_DYNAMIC_DISPATCH(TargetName)();
  evaluate_ = &HWY_DYNAMIC_DISPATCH(Evaluate);
}

}  // namespace sis
#endif
