#include "kernels/decide/simd_backend.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "kernels/numerics/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/decide/simd_backend.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/decide/scalar_backend.h"
#if HWY_TARGET != HWY_SCALAR
#include "kernels/decide/simd_decide-inl.h"
#include "kernels/decide/simd_slots-inl.h"
#include "kernels/decide/simd_visit_groups-inl.h"
#include "kernels/numerics/simd_math-inl.h"
#include "kernels/records/simd_groups-inl.h"
#include "kernels/records/simd_rows-inl.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR

void Evaluate(const EvaluateParameters& parameters, std::span<const Stretch> stretches) {
  ScalarBackend().Evaluate(parameters, stretches);
}

#else

// The REDUCED form has no log-probs at slots.
struct NoRows {
  struct Rows {};
  HWY_INLINE Rows Group(size_t, size_t, size_t, size_t) const { return {}; }
};

HWY_INLINE void ReadSlots(const NoRows::Rows&, const NoRows::Rows&, const GroupInput& input,
                          size_t lane, const SlotPlan& /*plan*/, Expectation& /*expectation*/,
                          SlotResults& results) {
  const Floats log_envelope = LoadFloats(input.log_envelopes + lane);
  const Floats covered_mass = LoadFloats(input.covered_masses + lane);
  results.envelopes = {FlushAll(log_envelope), covered_mass};
  results.valid =
      hn::And(hn::Lt(log_envelope, Constant(std::numeric_limits<float>::infinity())),
              hn::And(hn::Ge(covered_mass, hn::Zero(FloatTag())), AreMasses(covered_mass)));
}

template <class BehaviorRows, class CurrentRows>
HWY_INLINE void ReadSlots(const BehaviorRows& behavior, const CurrentRows& current,
                          const GroupInput& /*input*/, size_t lane, const SlotPlan& plan,
                          Expectation& expectation, SlotResults& results) {
  AccumulateSlots(behavior, current, lane, plan, expectation, results);
}

// Keeps the sums of consecutive stretches on vectors as long as they go to the same place.
class SumCollector {
 public:
  ~SumCollector() { Flush(); }

  // points: those of the prefix curve below top_k. The one at top_k comes from the sums themselves.
  void Open(const Stretch& stretch, size_t points) {
    if (stretch.sums != into_ || stretch.prefix_sums.data() != prefix_into_.data()) Flush();
    into_ = stretch.sums;
    prefix_into_ = stretch.prefix_sums;
    points_ = points;
  }
  // Makes room for so many positions, which must all be added.
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

// Decides the positions of one group, which are in count lanes from first_lane on.
template <class BehaviorRows, class CurrentRows>
HWY_INLINE void DecideGroup(const BehaviorRows& behavior, const CurrentRows& current,
                            const GroupInput& input, const GroupOutput& output, size_t first_lane,
                            size_t count, const SlotPlan& plan, Expectation& expectation,
                            SumCollector& collector) {
  const FloatTag d;
  for (size_t lane = 0; lane < kGroup; lane += kLanes) {
    const Mask scored = hn::RebindMask(d, PositionLanes(lane, first_lane, count));
    SlotResults slots;
    ReadSlots(behavior, current, input, lane, plan, expectation, slots);
    DecideLanes(input, output, lane, slots.envelopes, slots.valid, scored, plan.top_k,
                collector.sums());
    AddPrefix(slots.prefix, plan.prefix_curve.size(), scored, collector.prefix_sums());
    if (plan.total_variation) {
      collector.sums().total_variation.Add(
          UnitToFixed(hn::IfThenElseZero(scored, slots.total_variation)));
    }
  }
}

template <class BehaviorRows, class CurrentRows>
HWY_NOINLINE void DecidePartialGroup(const BehaviorRows& behavior, const CurrentRows& current,
                                     const GroupInput& input, const GroupOutput& output,
                                     size_t first_lane, size_t count, const SlotPlan& plan,
                                     Expectation& expectation, SumCollector& collector) {
  PartialGroup partial(input, first_lane, count);
  DecideGroup(behavior, current, partial.input(), partial.output(), first_lane, count, plan,
              expectation, collector);
  partial.CopyOutputTo(output);
}

template <class Behavior, class Current>
void EvaluatePositions(const SlotPlan& plan, uint64_t draw, const Stretch& stretch,
                       size_t first_lane, Behavior& behavior, Current& current,
                       SumCollector& collector) {
  const size_t positions = stretch.behavior.sampled_log_probs.size();
  const auto at = [](const auto& values, size_t index) {
    return values.empty() ? nullptr : values.data() + index;
  };
  UniformStream uniforms(stretch.sequence_key, draw, stretch.first_position);
  Expectation expectation;
  size_t index = 0;
  for (size_t group = 0; index < positions; ++group) {
    const size_t count = std::min(kGroup - first_lane, positions - index);
    const auto behavior_rows = behavior.Group(group, index, first_lane, count);
    const auto current_rows = current.Group(group, index, first_lane, count);
    const GroupInput input = {stretch.behavior.sampled_log_probs.data() + index,
                              stretch.current.sampled_log_probs.data() + index,
                              stretch.behavior.sampled_ranks.subspan(index, count),
                              uniforms.At(index, count),
                              at(stretch.current.log_envelopes, index),
                              at(stretch.current.covered_masses, index)};
    const GroupOutput output = {stretch.output.decisions.data() + index,
                                at(stretch.output.acceptance_probabilities, index),
                                at(stretch.output.log_modified_ratios, index),
                                at(stretch.output.modified_ratios, index),
                                at(stretch.output.log_ratios, index),
                                at(stretch.output.log_envelopes, index),
                                at(stretch.output.covered_masses, index)};
    collector.MakeRoom(count);
    if (HWY_LIKELY(count == kGroup)) {
      DecideGroup(behavior_rows, current_rows, input, output, 0, kGroup, plan, expectation,
                  collector);
    } else {
      DecidePartialGroup(behavior_rows, current_rows, input, output, first_lane, count, plan,
                         expectation, collector);
    }
    index += count;
    first_lane = 0;
  }
}

// All that a page has of an array; of a longer array the beginning.
template <typename T>
HWY_INLINE void PrefetchAll(std::span<const T> values) {
  for (size_t byte = 0; byte < std::min<size_t>(values.size_bytes(), 256); byte += 64) {
    PrefetchAhead(reinterpret_cast<const std::byte*>(values.data()) + byte, 0);
  }
}

// `next` is the stretch that comes next; may be null.
void EvaluateStretch(const EvaluateParameters& parameters, const Stretch& stretch,
                     const Stretch* next, SumCollector& collector) {
  SlotPlan plan = {static_cast<size_t>(parameters.slots),
                   static_cast<size_t>(parameters.top_k),
                   parameters.total_variation,
                   {}};
  if (!stretch.prefix_sums.empty()) {
    plan.prefix_curve = parameters.prefix_curve;
    // The sums over all slots are there anyway.
    if (plan.prefix_curve.back() == parameters.top_k) {
      plan.prefix_curve = plan.prefix_curve.first(plan.prefix_curve.size() - 1);
    }
  }
  collector.Open(stretch, plan.prefix_curve.size());
  if (stretch.current.reduced()) {
    NoRows none;
    return EvaluatePositions(plan, parameters.draw, stretch, 0, none, none, collector);
  }
  const std::byte* next_rows = nullptr;
  if (next != nullptr) {
    next_rows = next->behavior.grouped_log_probs.rows.data();
    PrefetchAll(next->behavior.sampled_log_probs);
    PrefetchAll(next->behavior.sampled_ranks.memory());
    PrefetchAll(next->behavior.ragged_log_probs.codes);
  }
  VisitGroups(stretch.behavior, stretch.current, parameters.slots, next_rows,
              [&](size_t first_lane, auto& behavior, auto& current) {
                EvaluatePositions(plan, parameters.draw, stretch, first_lane, behavior, current,
                                  collector);
              });
}

void Evaluate(const EvaluateParameters& parameters, std::span<const Stretch> stretches) {
  SumCollector collector;
  for (size_t i = 0; i < stretches.size(); ++i) {
    EvaluateStretch(parameters, stretches[i],
                    i + 1 < stretches.size() ? &stretches[i + 1] : nullptr, collector);
  }
}

#endif  // HWY_TARGET

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

std::vector<SimdBackend> SimdBackend::ForEveryTarget() {
  std::vector<SimdBackend> backends;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    backends.emplace_back();
  }
  hwy::SetSupportedTargetsForTest(0);
  return backends;
}

}  // namespace sis
#endif
