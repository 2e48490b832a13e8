#include "client/replicas/sums.h"

#include <algorithm>
#include <cstdint>
#include <functional>

#include "kernels/numerics/sums.h"

namespace sis {
namespace {

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

void AddMissing(const google::protobuf::RepeatedPtrField<v1::MissingTotals>& part,
                google::protobuf::RepeatedPtrField<v1::MissingTotals>& merged) {
  AddByKey(part, merged, &v1::MissingTotals::reason);
  SortByKey(merged, &v1::MissingTotals::reason);
}

void AddCorrections(const google::protobuf::RepeatedPtrField<v1::CorrectionTotals>& part,
                    google::protobuf::RepeatedPtrField<v1::CorrectionTotals>& merged) {
  AddByKey(part, merged, &v1::CorrectionTotals::correction);
}

}  // namespace sis
