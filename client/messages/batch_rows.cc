#include "client/messages/batch_rows.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/numerics/sums.h"

namespace sis {
namespace {

bool Bit(const std::string& bits, size_t i) { return (bits[i / 8] >> (i % 8) & 1) != 0; }

absl::Status WrongSize(size_t bytes, size_t wanted) {
  return absl::InternalError(absl::StrCat("the server's outputs hold ", bytes,
                                          " bytes in an array of ", wanted, " bytes"));
}

}  // namespace

BatchRows::BatchRows(const google::protobuf::RepeatedPtrField<v1::Slice>& slices) {
  for (const v1::Slice& slice : slices) {
    rows_.push_back({count_, slice.length()});
    count_ += slice.length();
  }
}

size_t BatchRows::CountRows(std::span<const int> numbers) const {
  size_t count = 0;
  for (const int number : numbers) count += rows_[number].count;
  return count;
}

std::string BatchRows::SplitArray(const std::string& array, std::span<const int> numbers) const {
  if (count_ == 0 || array.size() % count_ != 0) return array;
  const size_t width = array.size() / count_;
  std::string part;
  part.reserve(CountRows(numbers) * width);
  for (const int number : numbers) {
    part.append(array, rows_[number].first * width, rows_[number].count * width);
  }
  return part;
}

void BatchRows::SplitForm(const v1::EvaluateRequest& request, std::span<const int> numbers,
                          v1::EvaluateRequest& part) const {
  if (request.form_case() == v1::EvaluateRequest::FORM_NOT_SET) return;
  const google::protobuf::FieldDescriptor* field =
      request.GetDescriptor()->FindFieldByNumber(request.form_case());
  const google::protobuf::Message& whole = request.GetReflection()->GetMessage(request, field);
  google::protobuf::Message& form = *part.GetReflection()->MutableMessage(&part, field);
  const google::protobuf::Reflection& reflection = *whole.GetReflection();
  std::vector<const google::protobuf::FieldDescriptor*> present;
  reflection.ListFields(whole, &present);
  std::string scratch;
  for (const google::protobuf::FieldDescriptor* array : present) {
    switch (array->cpp_type()) {
      case google::protobuf::FieldDescriptor::CPPTYPE_STRING:
        reflection.SetString(
            &form, array,
            SplitArray(reflection.GetStringReference(whole, array, &scratch), numbers));
        break;
      case google::protobuf::FieldDescriptor::CPPTYPE_ENUM:
        reflection.SetEnumValue(&form, array, reflection.GetEnumValue(whole, array));
        break;
      case google::protobuf::FieldDescriptor::CPPTYPE_UINT32:
        reflection.SetUInt32(&form, array, reflection.GetUInt32(whole, array));
        break;
      default:
        std::abort();  // no form has a field of another type
    }
  }
}

void BatchRows::SplitOptions(const v1::EvaluateRequest& request, std::span<const int> numbers,
                             v1::EvaluateRequest& part) const {
  part.set_mask(SplitArray(request.mask(), numbers));
  part.set_own_log_probs(SplitArray(request.own_log_probs(), numbers));
  part.set_advantages(SplitArray(request.advantages(), numbers));
  if (request.has_decoupled()) {
    part.mutable_decoupled()->set_current_log_probs(
        SplitArray(request.decoupled().current_log_probs(), numbers));
  }
}

v1::Totals BatchRows::MissingTotals(const v1::EvaluateRequest& request, int number) const {
  const Range& range = rows_[number];
  size_t masked = 0;
  if (request.mask().size() == count_) {
    masked = std::ranges::count(request.mask().substr(range.first, range.count), '\0');
  }
  v1::Totals totals;
  totals.set_missing(range.count - masked);
  totals.set_masked(masked);
  return totals;
}

void BatchRows::SetMissing(const v1::EvaluateRequest& request, v1::EvaluateResponse& merged) const {
  const auto wanted = [&](v1::Output output) {
    return std::ranges::find(request.outputs(), output) != request.outputs().end();
  };
  // The server refuses ratios of missing positions, so their places are all filled.
  if (wanted(v1::ACCEPT_BITS) || request.outputs().empty()) {
    merged.set_accept_bits(std::string((count_ + 7) / 8, '\0'));
  }
  if (wanted(v1::DECISIONS)) {
    std::string decisions(count_, char{v1::MISSING});
    for (size_t i = 0; i < count_ && request.mask().size() == count_; ++i) {
      if (request.mask()[i] == 0) decisions[i] = char{v1::MASKED};
    }
    merged.set_decisions(std::move(decisions));
  }
  if (wanted(v1::RATIOS)) merged.set_ratios(std::string(count_ * sizeof(float), '\0'));
  if (wanted(v1::LOG_RATIOS)) merged.set_log_ratios(std::string(count_ * sizeof(float), '\0'));
  if (wanted(v1::SURROGATES)) merged.set_surrogates(std::string(count_ * sizeof(float), '\0'));
  if (wanted(v1::COEFFICIENTS)) merged.set_coefficients(std::string(count_ * sizeof(float), '\0'));
  if (wanted(v1::ACCEPTANCE_PROBABILITIES)) {
    merged.set_acceptance_probabilities(std::string(count_ * sizeof(float), '\0'));
  }
}

absl::Status BatchRows::MergeArray(const std::string& part, size_t element_bytes,
                                   std::span<const int> numbers, std::string& merged) const {
  if (merged.empty()) return absl::OkStatus();  // not asked for
  const size_t wanted = CountRows(numbers) * element_bytes;
  if (part.size() != wanted) return WrongSize(part.size(), wanted);
  size_t offset = 0;
  for (const int number : numbers) {
    const size_t bytes = rows_[number].count * element_bytes;
    merged.replace(rows_[number].first * element_bytes, bytes, part, offset, bytes);
    offset += bytes;
  }
  return absl::OkStatus();
}

absl::Status BatchRows::MergeBits(const std::string& part, std::span<const int> numbers,
                                  std::string& merged) const {
  if (merged.empty()) return absl::OkStatus();  // not asked for
  const size_t wanted = (CountRows(numbers) + 7) / 8;
  if (part.size() != wanted) return WrongSize(part.size(), wanted);
  size_t bit = 0;
  for (const int number : numbers) {
    for (size_t row = rows_[number].first; row < rows_[number].first + rows_[number].count; ++row) {
      if (!Bit(part, bit++)) continue;
      merged[row / 8] = static_cast<char>(merged[row / 8] | 1 << (row % 8));
    }
  }
  return absl::OkStatus();
}

absl::Status BatchRows::MergeOutputs(const v1::EvaluateResponse& part, std::span<const int> numbers,
                                     v1::EvaluateResponse& merged) const {
  absl::Status status = MergeBits(part.accept_bits(), numbers, *merged.mutable_accept_bits());
  status.Update(MergeArray(part.decisions(), 1, numbers, *merged.mutable_decisions()));
  status.Update(MergeArray(part.ratios(), sizeof(float), numbers, *merged.mutable_ratios()));
  status.Update(
      MergeArray(part.log_ratios(), sizeof(float), numbers, *merged.mutable_log_ratios()));
  status.Update(MergeArray(part.acceptance_probabilities(), sizeof(float), numbers,
                           *merged.mutable_acceptance_probabilities()));
  status.Update(
      MergeArray(part.surrogates(), sizeof(float), numbers, *merged.mutable_surrogates()));
  status.Update(
      MergeArray(part.coefficients(), sizeof(float), numbers, *merged.mutable_coefficients()));
  return status;
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
