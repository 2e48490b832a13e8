#include "server/messages/step_message.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/time/time.h"
#include "server/messages/cache_messages.h"

namespace sis {
namespace {

template <size_t kSize>
v1::Histogram ToHistogram(const std::vector<double>& bounds,
                          const std::array<int64_t, kSize>& counts) {
  v1::Histogram histogram;
  histogram.mutable_upper_bounds()->Assign(bounds.begin(), bounds.end());
  histogram.mutable_counts()->Assign(counts.begin(), counts.end());
  return histogram;
}

v1::Distributions ToDistributions(const Statistics& statistics) {
  v1::Distributions distributions;
  *distributions.mutable_abs_log_ratio() =
      ToHistogram(PowerBounds(kFirstNatsExponent), statistics.abs_log_ratio);
  *distributions.mutable_log_envelope() =
      ToHistogram(PowerBounds(kFirstNatsExponent), statistics.log_envelope);
  *distributions.mutable_residual_mass() =
      ToHistogram(PowerBounds(kFirstMassExponent), statistics.residual_mass);
  *distributions.mutable_acceptance_probability() =
      ToHistogram(AcceptanceBounds(), statistics.acceptance_probability);
  for (size_t i = 0; i < kRatioBounds.size(); ++i) {
    v1::Distributions::BeyondBound& beyond = *distributions.add_ratios_beyond();
    beyond.set_bound(kRatioBounds[i]);
    beyond.set_positions(statistics.ratios_beyond[i]);
  }
  return distributions;
}

void AddAges(const SumsByAge& ages, google::protobuf::RepeatedPtrField<v1::AgeTotals>& totals) {
  for (size_t i = 0; i < kAgeClasses.size(); ++i) {
    const AgeClass& age_class = kAgeClasses[i];
    const AgeSums& sums = ages[i];
    if (sums.scored() == 0) continue;
    v1::AgeTotals& age = *totals.Add();
    age.set_from(age_class.from);
    if (age_class.to != std::numeric_limits<uint64_t>::max()) age.set_to(age_class.to);
    age.set_ahead(i == kAhead);
    age.set_accepted(sums.accepted);
    age.set_rejected(sums.rejected);
    age.set_outside_top_k(sums.outside_top_k);
    age.set_d(FromFixed(sums.d));
    age.set_d_sis(FromFixed(sums.d_sis));
    age.set_weight(FromCountedWeight(sums.weight));
    age.set_weight_squared(FromCountedWeight(sums.weight_squared));
  }
}

}  // namespace

v1::Totals ToTotals(const Sums& sums) {
  v1::Totals totals;
  totals.set_accepted(sums.accepted);
  totals.set_rejected(sums.rejected);
  totals.set_outside_top_k(sums.outside_top_k);
  totals.set_missing(sums.missing);
  totals.set_masked(sums.masked);
  totals.set_envelope_violations(sums.envelope_violations);
  totals.set_d(FromFixed(sums.d));
  totals.set_d_sis(FromFixed(sums.d_sis));
  totals.set_log_envelope(FromFixed(sums.log_envelope));
  totals.set_residual_mass(FromFixed(sums.residual_mass));
  totals.set_acceptance_probability(FromFixed(sums.acceptance_probability));
  totals.set_expected_acceptance(FromFixed(sums.expected_acceptance));
  totals.set_k3(FromFixed(sums.k3));
  totals.set_total_variation(FromFixed(sums.total_variation));
  return totals;
}

v1::CorrectionTotals ToMessage(const std::string& correction, const CorrectionSums& sums) {
  v1::CorrectionTotals totals;
  totals.set_correction(correction);
  totals.set_positions(sums.positions);
  totals.set_touched(sums.touched);
  totals.set_zeroed(sums.zeroed);
  totals.set_weight(FromCountedWeight(sums.weight));
  totals.set_weight_squared(FromCountedWeight(sums.weight_squared));
  totals.set_abs_log_weight(FromFixed(sums.abs_log_weight));
  totals.set_gradient_mass(FromCountedWeight(sums.gradient_mass));
  return totals;
}

void AddStandardCorrections(const Statistics& statistics,
                            google::protobuf::RepeatedPtrField<v1::CorrectionTotals>& corrections) {
  *corrections.Add() = ToMessage("plain", statistics.plain);
  *corrections.Add() = ToMessage("clipped", statistics.clipped);
  *corrections.Add() = ToMessage("applied", statistics.applied);
}

void AddPrefixCurve(const Evaluated& evaluated,
                    google::protobuf::RepeatedPtrField<v1::PrefixPoint>& curve) {
  for (const auto& [top_k, of] : evaluated.prefix_curve) {
    v1::PrefixPoint& point = *curve.Add();
    point.set_top_k(static_cast<uint32_t>(top_k));
    point.set_residual_mass(FromFixed(of.residual_mass));
    point.set_expected_acceptance(FromFixed(of.expected_acceptance));
    point.set_positions(of.positions);
  }
}

v1::GetStepResponse ToMessage(const StepLedger::Step& step) {
  v1::GetStepResponse response;
  *response.mutable_totals() = ToTotals(step.evaluated.sums);
  response.set_sequences(step.sequences);
  *response.mutable_distributions() = ToDistributions(step.evaluated.statistics);
  AddAges(step.evaluated.ages, *response.mutable_ages());
  AddStandardCorrections(step.evaluated.statistics, *response.mutable_corrections());
  for (const auto& [name, sums] : step.evaluated.observed) {
    *response.add_corrections() = ToMessage(name, sums);
  }
  for (const MissingReason reason : kMissingReasons) {
    const int64_t positions = step.evaluated.missing[static_cast<size_t>(reason)];
    if (positions == 0) continue;
    v1::MissingTotals& missing = *response.add_missing();
    missing.set_reason(static_cast<v1::MissingReason>(reason));
    missing.set_positions(positions);
  }
  AddPrefixCurve(step.evaluated, *response.mutable_prefix_curve());
  response.set_uncounted_positions(step.uncounted.positions);
  response.set_uncounted_prefix_positions(step.uncounted.prefix_curve);
  response.set_uncounted_correction_positions(step.uncounted.corrections);
  if (step.ended != absl::InfinitePast()) {
    response.set_begun_at(SecondsSince1970(step.begun));
    response.set_ended_at(SecondsSince1970(step.ended));
  }
  return response;
}

}  // namespace sis
