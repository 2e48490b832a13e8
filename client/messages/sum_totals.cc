#include "client/messages/sum_totals.h"

#include <algorithm>
#include <cstdint>

#include "kernels/numerics/sums.h"

namespace sis {

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

void AddPrefixCurve(const v1::EvaluateResponse& part, v1::EvaluateResponse& merged) {
  if (merged.prefix_curve().empty()) {
    *merged.mutable_prefix_curve() = part.prefix_curve();
    return;
  }
  // Exact up to 2^23, as the addends are multiples of 2^-30.
  for (int i = 0; i < std::min(part.prefix_curve_size(), merged.prefix_curve_size()); ++i) {
    const v1::PrefixPoint& point = part.prefix_curve(i);
    v1::PrefixPoint& sum = *merged.mutable_prefix_curve(i);
    sum.set_residual_mass(sum.residual_mass() + point.residual_mass());
    sum.set_expected_acceptance(sum.expected_acceptance() + point.expected_acceptance());
  }
}

}  // namespace sis
