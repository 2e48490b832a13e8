#include "client/messages/sum_totals.h"

#include <algorithm>
#include <cstdint>

#include "kernels/numerics/sums.h"

namespace sis {
namespace {

void AddCounts(const v1::Histogram& from, v1::Histogram& into) {
  for (int i = 0; i < std::min(from.counts_size(), into.counts_size()); ++i) {
    into.set_counts(i, into.counts(i) + from.counts(i));
  }
}

void AddMissing(const google::protobuf::RepeatedPtrField<v1::MissingTotals>& part,
                google::protobuf::RepeatedPtrField<v1::MissingTotals>& merged) {
  for (const v1::MissingTotals& totals : part) {
    const auto found =
        std::ranges::find(merged, totals.reason(), [](const auto& sum) { return sum.reason(); });
    if (found == merged.end()) {
      *merged.Add() = totals;
    } else {
      found->set_positions(found->positions() + totals.positions());
    }
  }
  std::sort(merged.begin(), merged.end(),
            [](const auto& a, const auto& b) { return a.reason() < b.reason(); });
}

}  // namespace

v1::Totals SumTotals(std::span<const v1::Totals> parts) {
  v1::Totals sum;
  const google::protobuf::Reflection& reflection = *sum.GetReflection();
  for (int i = 0; i < v1::Totals::descriptor()->field_count(); ++i) {
    const google::protobuf::FieldDescriptor* field = v1::Totals::descriptor()->field(i);
    if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_UINT64) {
      uint64_t count = 0;
      for (const v1::Totals& part : parts) count += reflection.GetUInt64(part, field);
      reflection.SetUInt64(&sum, field, count);
    } else {
      int64_t fixed = 0;
      for (const v1::Totals& part : parts) {
        fixed += static_cast<int64_t>(reflection.GetDouble(part, field) * 0x1p30);
      }
      reflection.SetDouble(&sum, field, FromFixed(fixed));
    }
  }
  return sum;
}

void AddPrefixCurve(const google::protobuf::RepeatedPtrField<v1::PrefixPoint>& part,
                    google::protobuf::RepeatedPtrField<v1::PrefixPoint>& merged) {
  for (const v1::PrefixPoint& point : part) {
    const auto found =
        std::ranges::find(merged, point.top_k(), [](const auto& sum) { return sum.top_k(); });
    if (found == merged.end()) {
      *merged.Add() = point;
      continue;
    }
    // Exact up to 2^23, as the addends are multiples of 2^-30.
    found->set_residual_mass(found->residual_mass() + point.residual_mass());
    found->set_expected_acceptance(found->expected_acceptance() + point.expected_acceptance());
    found->set_positions(found->positions() + point.positions());
  }
  std::sort(merged.begin(), merged.end(),
            [](const auto& a, const auto& b) { return a.top_k() < b.top_k(); });
}

void AddCorrections(const google::protobuf::RepeatedPtrField<v1::CorrectionTotals>& part,
                    google::protobuf::RepeatedPtrField<v1::CorrectionTotals>& merged) {
  for (const v1::CorrectionTotals& totals : part) {
    const auto found = std::ranges::find(merged, totals.correction(),
                                         [](const auto& sum) { return sum.correction(); });
    if (found == merged.end()) {
      *merged.Add() = totals;
      continue;
    }
    v1::CorrectionTotals& sum = *found;
    sum.set_positions(sum.positions() + totals.positions());
    sum.set_touched(sum.touched() + totals.touched());
    sum.set_zeroed(sum.zeroed() + totals.zeroed());
    // Exact, as in AddPrefixCurve.
    sum.set_weight(sum.weight() + totals.weight());
    sum.set_weight_squared(sum.weight_squared() + totals.weight_squared());
    sum.set_abs_log_weight(sum.abs_log_weight() + totals.abs_log_weight());
    sum.set_gradient_mass(sum.gradient_mass() + totals.gradient_mass());
  }
}

void AddStep(const v1::GetStepResponse& part, v1::GetStepResponse& merged) {
  merged.set_sequences(merged.sequences() + part.sequences());
  merged.set_uncounted_positions(merged.uncounted_positions() + part.uncounted_positions());
  merged.set_uncounted_prefix_positions(merged.uncounted_prefix_positions() +
                                        part.uncounted_prefix_positions());
  merged.set_uncounted_correction_positions(merged.uncounted_correction_positions() +
                                            part.uncounted_correction_positions());
  AddCorrections(part.corrections(), *merged.mutable_corrections());
  AddMissing(part.missing(), *merged.mutable_missing());
  AddPrefixCurve(part.prefix_curve(), *merged.mutable_prefix_curve());
  if (!merged.has_distributions()) {
    if (part.has_distributions()) *merged.mutable_distributions() = part.distributions();
    return;
  }
  const v1::Distributions& from = part.distributions();
  v1::Distributions& into = *merged.mutable_distributions();
  AddCounts(from.abs_log_ratio(), *into.mutable_abs_log_ratio());
  AddCounts(from.log_envelope(), *into.mutable_log_envelope());
  AddCounts(from.residual_mass(), *into.mutable_residual_mass());
  AddCounts(from.acceptance_probability(), *into.mutable_acceptance_probability());
  for (int i = 0; i < std::min(from.ratios_beyond_size(), into.ratios_beyond_size()); ++i) {
    v1::Distributions::BeyondBound& sum = *into.mutable_ratios_beyond(i);
    sum.set_positions(sum.positions() + from.ratios_beyond(i).positions());
  }
  for (int i = 0; i < std::min(from.staleness_size(), into.staleness_size()); ++i) {
    const v1::Distributions::Staleness& counts = from.staleness(i);
    v1::Distributions::Staleness& sum = *into.mutable_staleness(i);
    sum.set_accepted(sum.accepted() + counts.accepted());
    sum.set_rejected(sum.rejected() + counts.rejected());
    sum.set_outside_top_k(sum.outside_top_k() + counts.outside_top_k());
  }
}

}  // namespace sis
