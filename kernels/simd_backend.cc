#include "kernels/simd_backend.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

// Targets whose vectors have no fixed size can't keep them in structures; they run the 128-bit
// code.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd_backend.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/scalar_backend.h"
#if HWY_TARGET != HWY_SCALAR
#include "kernels/simd_groups-inl.h"
#include "kernels/simd_math-inl.h"
#include "kernels/simd_rows-inl.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR

void Evaluate(const EvaluateParameters& parameters, std::span<const Segment> segments) {
  ScalarBackend().Evaluate(parameters, segments);
}

#else

// Per-position input and output of one group, kGroup values each.
struct GroupInput {
  const float* behavior_sampled;
  const float* current_sampled;
  const uint8_t* ranks;
  const uint32_t* uniforms;
  const float* log_envelopes;   // REDUCED only
  const float* covered_masses;  // REDUCED only
};

struct GroupOutput {
  Decision* decisions;
  // Null if not wanted.
  float* acceptance_probabilities;
  float* log_modified_ratios;
  float* modified_ratios;
};

struct Envelopes {
  Floats log_envelope;
  Floats covered_mass;
};

// A fixed-point sum in 32-bit halves: enough for kMaxPositions positions, all lanes together.
struct SplitSum {
  static constexpr size_t kMaxPositions = 1024;

  HWY_ALIGN int32_t high[kLanes] = {};
  HWY_ALIGN int32_t low[kLanes] = {};

  HWY_INLINE void Add(SplitFixed value) {
    const Int32Tag di;
    hn::Store(hn::Add(hn::Load(di, high), value.high), di, high);
    hn::Store(hn::Add(hn::Load(di, low), value.low), di, low);
  }
  int64_t Total() const {
    const Int32Tag di;
    return (int64_t{hn::GetLane(hn::SumOfLanes(di, hn::Load(di, high)))} << 16) +
           hn::GetLane(hn::SumOfLanes(di, hn::Load(di, low)));
  }
};

// The sums of up to kMaxPositions positions.
struct VectorSums {
  SplitSum d;
  SplitSum d_sis;
  SplitSum log_envelope;
  SplitSum residual_mass;
  SplitSum acceptance_probability;
  SplitSum expected_acceptance;
  SplitSum k3;
  size_t accepted = 0;
  size_t in_top_k = 0;
  size_t scored = 0;
  size_t envelope_violations = 0;

  void AddTo(Sums& sums) const {
    sums.accepted += accepted;
    sums.rejected += in_top_k - accepted;
    sums.outside_top_k += scored - in_top_k;
    sums.envelope_violations += envelope_violations;
    sums.d += d.Total();
    sums.d_sis += d_sis.Total();
    sums.log_envelope += log_envelope.Total();
    sums.residual_mass += residual_mass.Total();
    sums.acceptance_probability += acceptance_probability.Total();
    sums.expected_acceptance += expected_acceptance.Total();
    sums.k3 += k3.Total();
  }
};

// kLanes EnvelopeAccumulators side by side, with two maxima, so that one comparison need not wait
// for the last. The plain one only knows log-probs of used slots and within [-87, 88].
template <bool kPlain>
class EnvelopeAccumulators {
 public:
  HWY_INLINE EnvelopeAccumulators()
      : even_(Constant(kMinusInfinity)),
        odd_(Constant(kMinusInfinity)),
        covered_mass_(hn::Zero(FloatTag())),
        largest_bits_(hn::Zero(Uint32Tag())),
        last_behavior_(hn::Zero(FloatTag())) {}

  // The values of one rank or more.
  template <class V>
  HWY_INLINE void Add(V behavior, V current) {
    const V usable = RaiseMaximum(behavior, current);
    AddMass(usable, ExpInRange(usable));
  }

  // Used slots come first: if the last one is used in every lane, all are.
  HWY_INLINE bool AllUsed() const {
    return hn::AllTrue(FloatTag(), hn::Ne(last_behavior_, Constant(kMinusInfinity)));
  }
  // Whether nothing was added that the plain one doesn't know. A float below -87 has larger bits
  // than -87; so has -inf.
  HWY_INLINE bool WasPlain() const {
    const Uint32Tag du;
    const Uint32s limit = hn::BitCast(du, Constant(-87.0f));
    return AllUsed() && hn::AllTrue(du, hn::Eq(hn::Max(largest_bits_, limit), limit));
  }

  HWY_INLINE Envelopes Finish() const { return {FlushAll(hn::Max(even_, odd_)), covered_mass_}; }

 private:
  // Returns the current log-probs, -inf in unused slots.
  HWY_INLINE Floats RaiseMaximum(Floats behavior, Floats current) {
    RaiseMaximum(even_, behavior, current);
    return current;
  }
  HWY_INLINE TwoFloats RaiseMaximum(TwoFloats behavior, TwoFloats current) {
    RaiseMaximum(even_, behavior.first, current.first);
    RaiseMaximum(odd_, behavior.second, current.second);
    return current;
  }
  HWY_INLINE FourFloats RaiseMaximum(FourFloats behavior, FourFloats current) {
    return {RaiseMaximum(behavior.first, current.first),
            RaiseMaximum(behavior.second, current.second)};
  }
  HWY_INLINE void RaiseMaximum(Floats& max, Floats behavior, Floats& current) {
    last_behavior_ = behavior;
    if constexpr (kPlain) {
      largest_bits_ = hn::Max(largest_bits_, hn::BitCast(Uint32Tag(), current));
      max = hn::Max(max, hn::Sub(current, behavior));
    } else {
      const Floats minus_infinity = Constant(kMinusInfinity);
      const Mask used = hn::Ne(behavior, minus_infinity);
      current = hn::IfThenElse(used, current, minus_infinity);
      max = hn::Max(max, hn::IfThenElse(used, hn::Sub(current, behavior), minus_infinity));
    }
  }

  // In the order of the ranks.
  HWY_INLINE void AddMass(Floats log_probs, Floats exponentials) {
    if constexpr (!kPlain) exponentials = ZeroBelowRange(log_probs, exponentials);
    covered_mass_ = hn::Add(covered_mass_, exponentials);
  }
  template <class V>
  HWY_INLINE void AddMass(Pair<V> log_probs, Pair<V> exponentials) {
    AddMass(log_probs.first, exponentials.first);
    AddMass(log_probs.second, exponentials.second);
  }

  Floats even_;
  Floats odd_;
  Floats covered_mass_;
  Uint32s largest_bits_;
  Floats last_behavior_;
};

template <bool kPlain, class BehaviorRows, class CurrentRows>
HWY_INLINE EnvelopeAccumulators<kPlain> Accumulate(const BehaviorRows& behavior,
                                                   const CurrentRows& current, size_t lane,
                                                   size_t top_k) {
  EnvelopeAccumulators<kPlain> accumulators;
  size_t rank = 0;
  for (; rank + kRanksAtOnce <= top_k; rank += kRanksAtOnce) {
    accumulators.Add(behavior.Load(lane, rank), current.Load(lane, rank));
  }
  switch (top_k - rank) {
    case 1: {
      Floats q[1], p[1];
      behavior.LoadLast(lane, rank, q);
      current.LoadLast(lane, rank, p);
      accumulators.Add(q[0], p[0]);
      break;
    }
    case 2: {
      Floats q[2], p[2];
      behavior.LoadLast(lane, rank, q);
      current.LoadLast(lane, rank, p);
      accumulators.Add(TwoFloats{q[0], q[1]}, TwoFloats{p[0], p[1]});
      break;
    }
    case 3: {
      Floats q[3], p[3];
      behavior.LoadLast(lane, rank, q);
      current.LoadLast(lane, rank, p);
      accumulators.Add(TwoFloats{q[0], q[1]}, TwoFloats{p[0], p[1]});
      accumulators.Add(q[2], p[2]);
      break;
    }
  }
  return accumulators;
}

// What the groups before this one were like, as a guess.
struct Expectation {
  bool plain = true;
};

template <class BehaviorRows, class CurrentRows>
HWY_INLINE Envelopes GatheredEnvelopes(const BehaviorRows& behavior, const CurrentRows& current,
                                       size_t lane, size_t top_k, Expectation& expectation) {
  if (HWY_LIKELY(expectation.plain)) {
    const auto plain = Accumulate<true>(behavior, current, lane, top_k);
    if (HWY_LIKELY(plain.WasPlain())) return plain.Finish();
  }
  const auto careful = Accumulate<false>(behavior, current, lane, top_k);
  expectation.plain = careful.AllUsed();
  return careful.Finish();
}

// Decides the kLanes positions from `lane` on; those in `scored` count.
HWY_INLINE void DecideLanes(const GroupInput& input, const GroupOutput& output, size_t lane,
                            const Envelopes& envelopes, Mask scored, size_t top_k,
                            VectorSums& sums) {
  const FloatTag d;
  const Int32Tag di;
  const Floats one = Constant(1.0f);
  const Floats minus_infinity = Constant(kMinusInfinity);
  const Floats log_envelope = envelopes.log_envelope;

  const Floats current_sampled = LoadFloats(input.current_sampled + lane);
  const Floats log_ratio =
      FlushAll(hn::Sub(current_sampled, LoadFloats(input.behavior_sampled + lane)));
  const Int32s ranks =
      hn::PromoteTo(di, hn::LoadU(hn::Rebind<uint8_t, FloatTag>(), input.ranks + lane));
  const Mask in_top_k =
      hn::And(scored, hn::RebindMask(d, hn::Lt(ranks, hn::Set(di, static_cast<int32_t>(top_k)))));
  const Mask possible = hn::And(in_top_k, hn::Ne(current_sampled, minus_infinity));
  const Mask violation = hn::And(possible, hn::Gt(log_ratio, log_envelope));

  // A difference that would be flushed has the same exponential, 1.
  const TwoFloats exponentials =
      ExpAtMost88(TwoFloats{hn::Sub(log_ratio, log_envelope), LimitTo88(hn::Neg(log_envelope))});
  const ExpAndExcess ratio = ExpAndExcessAtMost88(LimitTo88(log_ratio));
  Floats a = exponentials.first;
  a = hn::IfThenElse(violation, one, a);
  a = hn::IfThenElseZero(possible, a);
  const Mask accepted = BelowThreshold(hn::LoadU(Uint32Tag(), input.uniforms + lane), a);

  const auto code = [](Decision decision) {
    return hn::Set(Int32Tag(), static_cast<int32_t>(decision));
  };
  const Int32s decisions =
      hn::IfThenElse(hn::RebindMask(di, accepted), code(Decision::kAccepted),
                     hn::IfThenElse(hn::RebindMask(di, in_top_k), code(Decision::kRejected),
                                    code(Decision::kOutsideTopK)));
  const hn::Rebind<uint8_t, FloatTag> d8;
  hn::StoreU(hn::DemoteTo(d8, decisions), d8, reinterpret_cast<uint8_t*>(output.decisions + lane));
  if (output.acceptance_probabilities != nullptr) {
    hn::StoreU(a, d, output.acceptance_probabilities + lane);
  }
  if (output.log_modified_ratios != nullptr) {
    hn::StoreU(hn::IfThenZeroElse(accepted, log_ratio), d, output.log_modified_ratios + lane);
  }
  if (output.modified_ratios != nullptr) {
    hn::StoreU(hn::IfThenElse(accepted, one, ratio.exponential), d, output.modified_ratios + lane);
  }

  // Lanes that don't count add 0, also if they hold NaN.
  const SplitFixed deviation =
      ToFixed(hn::IfThenElseZero(scored, hn::Min(hn::Abs(log_ratio), Constant(64.0f))));
  const Mask not_accepted = hn::Not(accepted);
  sums.d.Add(deviation);
  sums.d_sis.Add({hn::IfThenElseZero(hn::RebindMask(di, not_accepted), deviation.high),
                  hn::IfThenElseZero(hn::RebindMask(di, not_accepted), deviation.low)});
  sums.log_envelope.Add(ToFixed(hn::IfThenElseZero(
      scored, hn::Min(hn::Max(log_envelope, Constant(-64.0f)), Constant(64.0f)))));
  const Floats residual = hn::Max(hn::Sub(one, envelopes.covered_mass), hn::Zero(d));
  sums.residual_mass.Add(UnitToFixed(hn::IfThenElseZero(scored, residual)));
  sums.acceptance_probability.Add(UnitToFixed(a));
  const Floats expected =
      hn::Min(one, hn::Mul(FlushAll(envelopes.covered_mass), exponentials.second));
  const Mask enveloped = hn::And(scored, hn::Ne(log_envelope, minus_infinity));
  sums.expected_acceptance.Add(UnitToFixed(hn::IfThenElseZero(enveloped, expected)));
  sums.k3.Add(ToFixed(hn::IfThenElseZero(scored, hn::Min(ratio.excess, Constant(64.0f)))));

  sums.accepted += hn::CountTrue(d, accepted);
  sums.in_top_k += hn::CountTrue(d, in_top_k);
  sums.envelope_violations += hn::CountTrue(d, violation);
}

// A group whose lanes are not all positions, or are not all in one place, with everything copied to
// whole arrays.
class PartialGroup {
 public:
  PartialGroup(const GroupInput& input, size_t first_lane, size_t count)
      : first_lane_(first_lane), count_(count) {
    Copy(input.behavior_sampled, behavior_sampled_);
    Copy(input.current_sampled, current_sampled_);
    Copy(input.ranks, ranks_);
    Copy(input.uniforms, uniforms_);
    if (input.log_envelopes != nullptr) {
      Copy(input.log_envelopes, log_envelopes_);
      Copy(input.covered_masses, covered_masses_);
    }
  }
  GroupInput input() const {
    return {behavior_sampled_, current_sampled_, ranks_,
            uniforms_,         log_envelopes_,   covered_masses_};
  }
  GroupOutput output() { return {decisions_, acceptance_probabilities_, log_ratios_, ratios_}; }

  void CopyOutputTo(const GroupOutput& output) const {
    CopyBack(decisions_, output.decisions);
    CopyBack(acceptance_probabilities_, output.acceptance_probabilities);
    CopyBack(log_ratios_, output.log_modified_ratios);
    CopyBack(ratios_, output.modified_ratios);
  }

 private:
  template <typename T>
  void Copy(const T* from, T* into) const {
    std::memcpy(into + first_lane_, from, count_ * sizeof(T));
  }
  template <typename T>
  void CopyBack(const T* from, T* into) const {
    if (into != nullptr) std::memcpy(into, from + first_lane_, count_ * sizeof(T));
  }

  size_t first_lane_;
  size_t count_;
  float behavior_sampled_[kGroup] = {};
  float current_sampled_[kGroup] = {};
  uint8_t ranks_[kGroup] = {};
  uint32_t uniforms_[kGroup] = {};
  float log_envelopes_[kGroup] = {};
  float covered_masses_[kGroup] = {};
  Decision decisions_[kGroup];
  float acceptance_probabilities_[kGroup];
  float log_ratios_[kGroup];
  float ratios_[kGroup];
};

// The uniforms of a segment's positions, 64 at a time.
class UniformStream {
 public:
  UniformStream(uint64_t sequence_key, uint64_t draw, uint32_t first_position)
      : sequence_key_(sequence_key), draw_(draw), first_position_(first_position) {}

  // Those of the positions first_position + [index, index + count), count <= kGroup. Calls go
  // forwards.
  HWY_INLINE const uint32_t* At(size_t index, size_t count) {
    if (index + count > end_) Fill(index);
    return uniforms_ + (index - begin_);
  }

 private:
  static constexpr size_t kBlock = 64;

  void Fill(size_t index) {
    const uint32_t position = first_position_ + static_cast<uint32_t>(index);
    const uint32_t quad = position / 4;
    for (size_t i = 0; i < kBlock; i += 4 * kLanes) {
      StoreUniforms(sequence_key_, quad + static_cast<uint32_t>(i / 4), draw_, uniforms_ + i);
    }
    begin_ = index - position % 4;  // of the first quad; wraps around below 0, and back
    end_ = begin_ + kBlock;
  }

  const uint64_t sequence_key_;
  const uint64_t draw_;
  const uint32_t first_position_;
  size_t begin_ = 0;
  size_t end_ = 0;
  HWY_ALIGN uint32_t uniforms_[kBlock];
};

// The REDUCED form has no log-probs at slots.
struct NoRows {
  struct Rows {};
  HWY_INLINE Rows Group(size_t, size_t, size_t, size_t) const { return {}; }
};

HWY_INLINE Envelopes EnvelopesAt(const NoRows::Rows&, const NoRows::Rows&, const GroupInput& input,
                                 size_t lane, size_t /*top_k*/, Expectation& /*expectation*/) {
  return {FlushAll(LoadFloats(input.log_envelopes + lane)),
          LoadFloats(input.covered_masses + lane)};
}

template <class BehaviorRows, class CurrentRows>
HWY_INLINE Envelopes EnvelopesAt(const BehaviorRows& behavior, const CurrentRows& current,
                                 const GroupInput& /*input*/, size_t lane, size_t top_k,
                                 Expectation& expectation) {
  return GatheredEnvelopes(behavior, current, lane, top_k, expectation);
}

// Keeps the sums of consecutive segments on vectors as long as they go to the same place.
class SumCollector {
 public:
  ~SumCollector() { Flush(); }

  void Open(Sums* into) {
    if (into != into_) Flush();
    into_ = into;
  }
  HWY_INLINE VectorSums& Room(size_t positions) {
    if (sums_.scored + positions > SplitSum::kMaxPositions) Flush();
    sums_.scored += positions;
    return sums_;
  }

 private:
  void Flush() {
    if (sums_.scored == 0) return;
    sums_.AddTo(*into_);
    sums_ = VectorSums();
  }

  Sums* into_ = nullptr;
  VectorSums sums_;
};

// Decides the positions of one group, which are in count lanes from first_lane on.
template <class BehaviorRows, class CurrentRows>
HWY_INLINE void DecideGroup(const BehaviorRows& behavior, const CurrentRows& current,
                            const GroupInput& input, const GroupOutput& output, size_t first_lane,
                            size_t count, size_t top_k, Expectation& expectation,
                            VectorSums& sums) {
  const FloatTag d;
  for (size_t lane = 0; lane < kGroup; lane += kLanes) {
    const auto scored = PositionLanes(lane, first_lane, count);
    const Envelopes envelopes = EnvelopesAt(behavior, current, input, lane, top_k, expectation);
    DecideLanes(input, output, lane, envelopes, hn::RebindMask(d, scored), top_k, sums);
  }
}

template <class BehaviorRows, class CurrentRows>
HWY_NOINLINE void DecidePartialGroup(const BehaviorRows& behavior, const CurrentRows& current,
                                     const GroupInput& input, const GroupOutput& output,
                                     size_t first_lane, size_t count, size_t top_k,
                                     Expectation& expectation, VectorSums& sums) {
  PartialGroup partial(input, first_lane, count);
  DecideGroup(behavior, current, partial.input(), partial.output(), first_lane, count, top_k,
              expectation, sums);
  partial.CopyOutputTo(output);
}

template <class Behavior, class Current>
void EvaluatePositions(const EvaluateParameters& parameters, const Segment& segment,
                       size_t first_lane, Behavior& behavior, Current& current,
                       SumCollector& collector) {
  const size_t top_k = parameters.top_k;
  const size_t positions = segment.behavior.sampled_log_probs.size();
  const auto at = [](const auto& values, size_t index) {
    return values.empty() ? nullptr : values.data() + index;
  };
  UniformStream uniforms(segment.sequence_key, parameters.draw, segment.first_position);
  Expectation expectation;
  size_t index = 0;
  for (size_t group = 0; index < positions; ++group) {
    const size_t count = std::min(kGroup - first_lane, positions - index);
    const auto behavior_rows = behavior.Group(group, index, first_lane, count);
    const auto current_rows = current.Group(group, index, first_lane, count);
    const GroupInput input = {segment.behavior.sampled_log_probs.data() + index,
                              segment.current.sampled_log_probs.data() + index,
                              segment.behavior.sampled_ranks.data() + index,
                              uniforms.At(index, count),
                              at(segment.current.log_envelopes, index),
                              at(segment.current.covered_masses, index)};
    const GroupOutput output = {
        segment.output.decisions.data() + index, at(segment.output.acceptance_probabilities, index),
        at(segment.output.log_modified_ratios, index), at(segment.output.modified_ratios, index)};
    VectorSums& sums = collector.Room(count);
    if (HWY_LIKELY(count == kGroup)) {
      DecideGroup(behavior_rows, current_rows, input, output, 0, kGroup, top_k, expectation, sums);
    } else {
      DecidePartialGroup(behavior_rows, current_rows, input, output, first_lane, count, top_k,
                         expectation, sums);
    }
    index += count;
    first_lane = 0;
  }
}

void EvaluateSegment(const EvaluateParameters& parameters, const Segment& segment,
                     SumCollector& collector) {
  if (segment.current.reduced()) {
    NoRows none;
    return EvaluatePositions(parameters, segment, 0, none, none, collector);
  }
  VisitGroups(segment.behavior, segment.current, parameters.slots,
              [&](size_t first_lane, auto& behavior, auto& current) {
                EvaluatePositions(parameters, segment, first_lane, behavior, current, collector);
              });
}

void Evaluate(const EvaluateParameters& parameters, std::span<const Segment> segments) {
  SumCollector collector;
  for (const Segment& segment : segments) {
    if (parameters.total_variation || !segment.prefix_sums.empty() ||
        segment.behavior.grouped_log_probs.needs_scalar() ||
        segment.current.grouped_log_probs.needs_scalar()) {
      ScalarBackend().Evaluate(parameters, {&segment, 1});
      continue;
    }
    collector.Open(segment.sums);
    EvaluateSegment(parameters, segment, collector);
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
