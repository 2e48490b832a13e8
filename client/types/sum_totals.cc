#include "client/types/sum_totals.h"

#include <algorithm>
#include <cstdint>
#include <functional>

#include "kernels/numerics/sums.h"

namespace sis {
namespace {

void AddCounts(const v1::Histogram& from, v1::Histogram& into) {
  for (int i = 0; i < std::min(from.counts_size(), into.counts_size()); ++i) {
    into.set_counts(i, into.counts(i) + from.counts(i));
  }
}

// Adds the counts and sums of a message: its fields of type uint64 and double. Sums are exact up to
// 2^23, as their addends are multiples of 2^-30.
void AddNumbers(const google::protobuf::Message& part, google::protobuf::Message& sum) {
  using Field = google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection& reflection = *sum.GetReflection();
  for (int i = 0; i < sum.GetDescriptor()->field_count(); ++i) {
    const Field* field = sum.GetDescriptor()->field(i);
    if (field->is_repeated()) continue;
    if (field->cpp_type() == Field::CPPTYPE_UINT64) {
      reflection.SetUInt64(&sum, field,
                           reflection.GetUInt64(sum, field) + reflection.GetUInt64(part, field));
    } else if (field->cpp_type() == Field::CPPTYPE_DOUBLE) {
      reflection.SetDouble(&sum, field,
                           reflection.GetDouble(sum, field) + reflection.GetDouble(part, field));
    }
  }
}

// Adds each element of a part to that of the same key.
template <typename Element, typename Key>
void AddByKey(const google::protobuf::RepeatedPtrField<Element>& part,
              google::protobuf::RepeatedPtrField<Element>& merged, Key key) {
  for (const Element& element : part) {
    const auto found = std::ranges::find(merged, std::invoke(key, element), key);
    if (found == merged.end()) {
      *merged.Add() = element;
    } else {
      AddNumbers(element, *found);
    }
  }
}

template <typename Element, typename Key>
void SortByKey(google::protobuf::RepeatedPtrField<Element>& merged, Key key) {
  std::sort(merged.begin(), merged.end(), [key](const Element& a, const Element& b) {
    return std::invoke(key, a) < std::invoke(key, b);
  });
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
  AddByKey(part, merged, &v1::PrefixPoint::top_k);
  SortByKey(merged, &v1::PrefixPoint::top_k);
}

void AddCorrections(const google::protobuf::RepeatedPtrField<v1::CorrectionTotals>& part,
                    google::protobuf::RepeatedPtrField<v1::CorrectionTotals>& merged) {
  AddByKey(part, merged, &v1::CorrectionTotals::correction);
}

void AddStep(const v1::GetStepResponse& part, v1::GetStepResponse& merged) {
  AddNumbers(part, merged);
  AddCorrections(part.corrections(), *merged.mutable_corrections());
  AddByKey(part.missing(), *merged.mutable_missing(), &v1::MissingTotals::reason);
  SortByKey(*merged.mutable_missing(), &v1::MissingTotals::reason);
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

void AddStretch(const v1::GetHistoryResponse::Stretch& part,
                v1::GetHistoryResponse::Stretch& merged) {
  merged.set_begun_at(std::min(merged.begun_at(), part.begun_at()));
  merged.set_ended_at(std::max(merged.ended_at(), part.ended_at()));
  AddNumbers(part.totals(), *merged.mutable_totals());
  merged.set_sequences(merged.sequences() + part.sequences());
  AddByKey(part.missing(), *merged.mutable_missing(), &v1::MissingTotals::reason);
  SortByKey(*merged.mutable_missing(), &v1::MissingTotals::reason);
  AddCorrections(part.corrections(), *merged.mutable_corrections());
  merged.set_uncounted_positions(merged.uncounted_positions() + part.uncounted_positions());
}

}  // namespace sis
