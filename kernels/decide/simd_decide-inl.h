// Computes the decisions of a group's positions, and their sums, from the results over the slots.
#if defined(SIS_KERNELS_SIMD_DECIDE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SIS_KERNELS_SIMD_DECIDE_INL_H_
#undef SIS_KERNELS_SIMD_DECIDE_INL_H_
#else
#define SIS_KERNELS_SIMD_DECIDE_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/decide/backend.h"
#include "kernels/decide/simd_envelopes-inl.h"
#include "kernels/numerics/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sis {
namespace HWY_NAMESPACE {

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
  float* log_ratios;
  float* log_envelopes;
  float* covered_masses;
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
  SplitSum total_variation;
  size_t accepted = 0;
  size_t in_top_k = 0;
  size_t scored = 0;
  size_t envelope_violations = 0;
  size_t invalid = 0;

  void AddTo(Sums& sums) const {
    sums.accepted += accepted;
    sums.rejected += in_top_k - accepted;
    sums.outside_top_k += scored - in_top_k;
    sums.envelope_violations += envelope_violations;
    sums.invalid += invalid;
    sums.d += d.Total();
    sums.d_sis += d_sis.Total();
    sums.log_envelope += log_envelope.Total();
    sums.residual_mass += residual_mass.Total();
    sums.acceptance_probability += acceptance_probability.Total();
    sums.expected_acceptance += expected_acceptance.Total();
    sums.k3 += k3.Total();
    sums.total_variation += total_variation.Total();
  }
};

// Sums of one point of the prefix curve, in vectors.
struct VectorPrefixSums {
  SplitSum residual_mass;
  SplitSum expected_acceptance;

  void AddTo(PrefixSums& sums) const {
    sums.residual_mass += residual_mass.Total();
    sums.expected_acceptance += expected_acceptance.Total();
  }
};

// ResidualMass of each lane.
HWY_INLINE Floats ResidualMasses(const Envelopes& envelopes) {
  return hn::Max(hn::Sub(Constant(1.0f), envelopes.covered_mass), hn::Zero(FloatTag()));
}

// ExpectedAcceptance of the scored lanes, 0 in others. inverse_envelope is the exponential of
// -log_envelope, limited to 88.
HWY_INLINE Floats ExpectedAcceptances(const Envelopes& envelopes, Floats inverse_envelope,
                                      Mask scored) {
  const Mask enveloped = hn::And(scored, hn::Ne(envelopes.log_envelope, Constant(kMinusInfinity)));
  return hn::IfThenElseZero(
      enveloped,
      hn::Min(Constant(1.0f), hn::Mul(FlushAll(envelopes.covered_mass), inverse_envelope)));
}

// Adds the points of the curve, of the lanes in `scored`.
HWY_INLINE void AddPrefix(const Envelopes* prefix, size_t points, Mask scored,
                          VectorPrefixSums* sums) {
  for (size_t point = 0; point < points; point += 2) {
    const size_t other = point + 1 < points ? point + 1 : point;
    const TwoFloats inverses =
        ExpAtMost88(TwoFloats{LimitTo88(hn::Neg(prefix[point].log_envelope)),
                              LimitTo88(hn::Neg(prefix[other].log_envelope))});
    const auto add = [&](size_t index, Floats inverse) HWY_ATTR {
      sums[index].residual_mass.Add(
          UnitToFixed(hn::IfThenElseZero(scored, ResidualMasses(prefix[index]))));
      sums[index].expected_acceptance.Add(
          UnitToFixed(ExpectedAcceptances(prefix[index], inverse, scored)));
    };
    add(point, inverses.first);
    if (other != point) add(other, inverses.second);
  }
}

// Decides the kLanes positions from `lane` on; positions in `scored` count. slots_valid is
// SlotsResult::valid of each.
HWY_INLINE void DecideLanes(const GroupInput& input, const GroupOutput& output, size_t lane,
                            const Envelopes& envelopes, Mask slots_valid, Mask scored, size_t top_k,
                            VectorSums& sums) {
  const FloatTag d;
  const Int32Tag di;
  const Floats one = Constant(1.0f);
  const Floats minus_infinity = Constant(kMinusInfinity);
  const Floats log_envelope = envelopes.log_envelope;

  const Floats current_sampled = LoadFloats(input.current_sampled + lane);
  const Mask valid = hn::And(slots_valid, hn::Le(current_sampled, Constant(kRoundingSlack)));
  const Floats log_ratio =
      FlushAll(hn::Sub(current_sampled, LoadFloats(input.behavior_sampled + lane)));
  const Int32s ranks = LoadBytes(input.ranks + lane);
  const Mask in_top_k =
      hn::And(scored, hn::RebindMask(d, hn::Lt(ranks, hn::Set(di, static_cast<int32_t>(top_k)))));
  const Mask possible = hn::And(in_top_k, hn::Ne(current_sampled, minus_infinity));
  const Mask violation = hn::And(possible, hn::Gt(log_ratio, log_envelope));

  // Flushing the difference would not change its exponential, 1.
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
  if (output.log_ratios != nullptr) hn::StoreU(log_ratio, d, output.log_ratios + lane);
  if (output.log_envelopes != nullptr) hn::StoreU(log_envelope, d, output.log_envelopes + lane);
  if (output.covered_masses != nullptr) {
    hn::StoreU(envelopes.covered_mass, d, output.covered_masses + lane);
  }

  // Lanes that don't count add 0, even if they are NaN.
  const SplitFixed deviation =
      ToFixed(hn::IfThenElseZero(scored, hn::Min(hn::Abs(log_ratio), Constant(64.0f))));
  const Mask not_accepted = hn::Not(accepted);
  sums.d.Add(deviation);
  sums.d_sis.Add({hn::IfThenElseZero(hn::RebindMask(di, not_accepted), deviation.high),
                  hn::IfThenElseZero(hn::RebindMask(di, not_accepted), deviation.low)});
  sums.log_envelope.Add(ToFixed(hn::IfThenElseZero(
      scored, hn::Min(hn::Max(log_envelope, Constant(-64.0f)), Constant(64.0f)))));
  sums.residual_mass.Add(UnitToFixed(hn::IfThenElseZero(scored, ResidualMasses(envelopes))));
  sums.acceptance_probability.Add(UnitToFixed(a));
  sums.expected_acceptance.Add(
      UnitToFixed(ExpectedAcceptances(envelopes, exponentials.second, scored)));
  sums.k3.Add(ToFixed(hn::IfThenElseZero(scored, hn::Min(ratio.excess, Constant(64.0f)))));

  sums.accepted += hn::CountTrue(d, accepted);
  sums.in_top_k += hn::CountTrue(d, in_top_k);
  sums.envelope_violations += hn::CountTrue(d, violation);
  sums.invalid += hn::CountTrue(d, hn::AndNot(valid, scored));
}

// The last group of a range, with fewer than kGroup positions. Arrays that are not part of a block
// are copied to arrays of full length.
class PartialGroup {
 public:
  PartialGroup(const GroupInput& input, size_t count) : input_(input), count_(count) {
    Copy(input_.current_sampled, current_sampled_);
    Copy(input_.log_envelopes, log_envelopes_);
    Copy(input_.covered_masses, covered_masses_);
  }
  const GroupInput& input() const { return input_; }
  GroupOutput output() {
    return {decisions_,  acceptance_probabilities_, log_modified_ratios_,  modified_ratios_,
            log_ratios_, output_log_envelopes_,     output_covered_masses_};
  }

  void CopyOutputTo(const GroupOutput& output) const {
    CopyBack(decisions_, output.decisions);
    CopyBack(acceptance_probabilities_, output.acceptance_probabilities);
    CopyBack(log_modified_ratios_, output.log_modified_ratios);
    CopyBack(modified_ratios_, output.modified_ratios);
    CopyBack(log_ratios_, output.log_ratios);
    CopyBack(output_log_envelopes_, output.log_envelopes);
    CopyBack(output_covered_masses_, output.covered_masses);
  }

 private:
  void Copy(const float*& values, float* into) const {
    if (values == nullptr) return;
    std::memcpy(into, values, count_ * sizeof(float));
    values = into;
  }
  template <typename T>
  void CopyBack(const T* from, T* into) const {
    if (into != nullptr) std::memcpy(into, from, count_ * sizeof(T));
  }

  GroupInput input_;
  size_t count_;
  float current_sampled_[kGroup] = {};
  float log_envelopes_[kGroup] = {};
  float covered_masses_[kGroup] = {};
  Decision decisions_[kGroup];
  float acceptance_probabilities_[kGroup];
  float log_modified_ratios_[kGroup];
  float modified_ratios_[kGroup];
  float log_ratios_[kGroup];
  float output_log_envelopes_[kGroup];
  float output_covered_masses_[kGroup];
};

// The uniforms of a range's positions, 64 at a time.
class UniformStream {
 public:
  UniformStream(uint64_t sequence_key, uint64_t draw, uint32_t first_position)
      : sequence_key_(sequence_key), draw_(draw), first_position_(first_position) {}

  // Returns the uniforms of the positions first_position + [index, index + kGroup). Calls must not
  // go backwards.
  HWY_INLINE const uint32_t* At(size_t index) {
    if (index + kGroup > end_) Fill(index);
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

}  // namespace HWY_NAMESPACE
}  // namespace sis
HWY_AFTER_NAMESPACE();

#endif  // include guard of the target
