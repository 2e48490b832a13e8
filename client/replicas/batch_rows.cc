#include "client/replicas/batch_rows.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace sis {
namespace {

using google::protobuf::FieldDescriptor;

// Those that are set.
std::vector<const FieldDescriptor*> FieldsOf(const google::protobuf::Message& message) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  return fields;
}

// The one of an answer that has the output's name; null if the output is none.
const FieldDescriptor* FieldOf(int output) {
  const std::string& name = v1::Output_Name(static_cast<v1::Output>(output));
  return v1::EvaluateResponse::descriptor()->FindFieldByName(absl::AsciiStrToLower(name));
}

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

void BatchRows::TakeArrays(google::protobuf::Message& message, google::protobuf::Message& arrays) {
  for (const FieldDescriptor* field : FieldsOf(message)) {
    if (field->type() == FieldDescriptor::TYPE_BYTES) {
      message.GetReflection()->SwapFields(&message, &arrays, {field});
    } else if (field->type() == FieldDescriptor::TYPE_MESSAGE && !field->is_repeated()) {
      TakeArrays(*message.GetReflection()->MutableMessage(&message, field),
                 *arrays.GetReflection()->MutableMessage(&arrays, field));
    }
  }
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

std::string BatchRows::SplitRagged(const std::string& array, const std::string& counts,
                                   std::span<const int> numbers) const {
  if (counts.size() != count_ * sizeof(uint16_t)) return array;
  std::vector<size_t> begins = {0};  // of each position's values, and the end
  for (size_t i = 0; i < count_; ++i) {
    uint16_t count;
    std::memcpy(&count, counts.data() + i * sizeof(count), sizeof(count));
    begins.push_back(begins.back() + count);
  }
  if (begins.back() == 0 || array.size() % begins.back() != 0) return array;
  const size_t width = array.size() / begins.back();
  std::string part;
  for (const int number : numbers) {
    const auto [first, count] = rows_[number];
    part.append(array, begins[first] * width, (begins[first + count] - begins[first]) * width);
  }
  return part;
}

void BatchRows::Split(const google::protobuf::Message& arrays, std::span<const int> numbers,
                      google::protobuf::Message& part) const {
  std::string scratch;
  for (const FieldDescriptor* field : FieldsOf(arrays)) {
    if (field->type() == FieldDescriptor::TYPE_BYTES) {
      const std::string& array =
          arrays.GetReflection()->GetStringReference(arrays, field, &scratch);
      const bool ragged = arrays.GetDescriptor() == v1::Gathered::descriptor() &&
                          field->number() == v1::Gathered::kLogProbsFieldNumber &&
                          !static_cast<const v1::Gathered&>(arrays).top_k_counts().empty();
      part.GetReflection()->SetString(
          &part, field,
          ragged
              ? SplitRagged(array, static_cast<const v1::Gathered&>(arrays).top_k_counts(), numbers)
              : SplitArray(array, numbers));
    } else {
      Split(arrays.GetReflection()->GetMessage(arrays, field), numbers,
            *part.GetReflection()->MutableMessage(&part, field));
    }
  }
}

v1::Totals BatchRows::MissingTotals(const std::string& mask, int number) const {
  const Range& range = rows_[number];
  size_t masked = 0;
  if (mask.size() == count_) {
    masked = std::ranges::count(mask.substr(range.first, range.count), '\0');
  }
  v1::Totals totals;
  totals.set_missing(range.count - masked);
  totals.set_masked(masked);
  return totals;
}

void BatchRows::SetMissing(const google::protobuf::RepeatedField<int>& outputs,
                           const std::string& mask, v1::EvaluateResponse& merged) const {
  if (outputs.empty()) merged.set_accept_bits(std::string((count_ + 7) / 8, '\0'));
  for (const int output : outputs) {
    if (output == v1::ACCEPT_BITS) {
      merged.set_accept_bits(std::string((count_ + 7) / 8, '\0'));
    } else if (output == v1::DECISIONS) {
      std::string decisions(count_, char{v1::MISSING});
      for (size_t i = 0; i < count_ && mask.size() == count_; ++i) {
        if (mask[i] == 0) decisions[i] = char{v1::MASKED};
      }
      merged.set_decisions(std::move(decisions));
    } else if (const FieldDescriptor* field = FieldOf(output); field != nullptr) {
      // The server refuses ratios of missing positions, so their places are all filled.
      merged.GetReflection()->SetString(&merged, field, std::string(count_ * sizeof(float), '\0'));
    }
  }
}

absl::Status BatchRows::MergeArray(const std::string& part, std::span<const int> numbers,
                                   std::string& merged) const {
  if (merged.empty()) return absl::OkStatus();  // not asked for
  const size_t element_bytes = merged.size() / count_;
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
  status.Update(MergeArray(part.decisions(), numbers, *merged.mutable_decisions()));
  status.Update(MergeArray(part.ratios(), numbers, *merged.mutable_ratios()));
  status.Update(MergeArray(part.log_ratios(), numbers, *merged.mutable_log_ratios()));
  status.Update(MergeArray(part.acceptance_probabilities(), numbers,
                           *merged.mutable_acceptance_probabilities()));
  status.Update(MergeArray(part.surrogates(), numbers, *merged.mutable_surrogates()));
  status.Update(MergeArray(part.coefficients(), numbers, *merged.mutable_coefficients()));
  return status;
}

}  // namespace sis
